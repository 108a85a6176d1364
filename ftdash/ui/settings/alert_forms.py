"""The forms for rules and channels of alerts; the services decide which values are valid."""

from typing import Any

from django import forms

from ftdash.alerts import queries
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Watched
from ftdash.runs.queries.pipelines import pipeline_names
from ftdash.ui.actions.forms import PLAIN_TEXT
from ftdash.ui.settings.forms import SettingsForm

ALL = ("", "all pipelines")
_NUMBERS = {
    "fire_above": ("Fires above", "Seconds for times, bytes for data, else a count.", 60),
    "fire_after_s": (
        "Fires after so many seconds above",
        "0: at the first look.",
        10,
    ),
    "clear_below": (
        "Clears below",
        "Not above the first value; between them it stays.",
        30,
    ),
    "clear_after_s": ("Clears after so many seconds below", "", 30),
}


class BandForm(SettingsForm):
    """The two thresholds, and how long each has to hold; an existing rule's as they are now."""

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        rule = queries.rule(of) if of else None
        for name, (label, help_text, default) in _NUMBERS.items():
            self.fields[name] = forms.FloatField(
                label=label,
                help_text=help_text,
                initial=_plain(getattr(rule.band, name)) if rule else default,
            )
        self.order_fields(["name", "watched", "pipeline", *_NUMBERS, "reason"])

    def band(self) -> Band:
        return Band(**{name: self.cleaned_data[name] for name in _NUMBERS})

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if all(name in cleaned for name in _NUMBERS):
            cleaned["band"] = self.band()
        return cleaned


def _plain(number: float) -> float:
    """`2`, not `2.0`."""
    return int(number) if number.is_integer() else number


def _pipelines() -> list[tuple[str, str]]:
    return [ALL, *((name, name) for name in pipeline_names())]


class PipelineField(forms.ChoiceField):
    """One pipeline, or None for all."""

    def __init__(self) -> None:
        super().__init__(label="Of", required=False, choices=_pipelines)

    def clean(self, value: Any) -> str | None:
        return super().clean(value) or None


class NewRuleForm(BandForm):
    name = forms.CharField(label="Name", max_length=80, widget=forms.TextInput(attrs=PLAIN_TEXT))
    watched = forms.ChoiceField(label="Watches", choices=Watched.choices)
    pipeline = PipelineField()


class ChannelForm(SettingsForm):
    name = forms.CharField(label="Name", widget=forms.TextInput(attrs=PLAIN_TEXT))
    address = forms.CharField(label="Address", widget=forms.TextInput(attrs=PLAIN_TEXT))
    pipeline = PipelineField()


class WebhookForm(ChannelForm):
    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        self.fields["address"].help_text = "https://..., which answers 200 to 299 to a POST"


class MailForm(ChannelForm):
    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        self.fields["address"].help_text = "One or more, separated by commas"
