"""The field for the settings of a pipeline, one `key: value` per line.

Knows the syntax of the lines. The engine's settings table decides what is valid, and its refusal is
shown in the form.
"""

from typing import Any

from django import forms

EXAMPLE = "execution.checkpointing.interval: 500 ms"
HELP = "One on each line; what is not given keeps its default. All of them are listed below."


class SettingsField(forms.CharField):
    """Cleans to a dictionary from key to value; empty if nothing is given."""

    widget = forms.Textarea

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(label="Settings", required=False, help_text=HELP, **kwargs)
        self.widget.attrs |= {
            "rows": 3,
            "placeholder": EXAMPLE,
            "spellcheck": "false",
            "autocomplete": "off",
        }

    def clean(self, value: Any) -> dict[str, str]:
        settings: dict[str, str] = {}
        for line in super().clean(value).splitlines():
            if line.strip():
                key, text = _pair(line)
                if key in settings:
                    raise forms.ValidationError(f"{key} is given twice; keep one of the lines.")
                settings[key] = text
        return settings


def _pair(line: str) -> tuple[str, str]:
    key, separator, text = line.partition(":")
    if not separator:
        raise forms.ValidationError(f"{line.strip()!r} is no setting; write it like {EXAMPLE!r}.")
    return key.strip(), text.strip()
