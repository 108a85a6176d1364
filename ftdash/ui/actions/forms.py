"""The parts that all action forms share: the reason, the command they build, and how they ask.

Fields only describe themselves: the services decide if a request can be granted, and the form shows
their refusal.
"""

from typing import Any, ClassVar

from django import forms

from ftdash.jobs.answers import PipelinePage
from ftdash.requests import services
from pipelines.domain.commands import AllowFaults, Command, RunCommand
from pipelines.domain.ids import RequestId
from pipelines.domain.status import SavepointFormat
from pipelines.domain.texts import LABEL_LENGTH_MAX

REASON_LENGTH_MAX = 500
FORMATS = (
    (SavepointFormat.CANONICAL.value, "canonical: open files (Parquet)"),
    (SavepointFormat.NATIVE.value, "native: the files of its state backend"),
)
PLAIN_TEXT = {"autocomplete": "off", "autocapitalize": "off", "spellcheck": "false"}


class ActionForm(forms.Form):
    """A form with its command, and with the texts of its button and its heading."""

    command: ClassVar[type[Command]]
    title: ClassVar[str]
    button: ClassVar[str]
    is_button: ClassVar[bool] = True  # has a button on the page of the pipeline
    look: ClassVar[str] = ""  # the style of that button

    reason = forms.CharField(
        label="Why",
        max_length=REASON_LENGTH_MAX,
        help_text="Kept in the audit log, with your name and the time.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    field_order = (
        "path",
        "package",
        "wheel",
        "drain",
        "with_savepoint",
        "label",
        "savepoint_format",
        "parallelism",
        "claim_mode",
        "allow_non_restored_state",
        "renamed",
        "accepted_gaps",
        "settings",
        "parameters",
        "is_allowed",
        "fault",
        "slot",
        "moment",
        "reason",
        "confirmation",
    )

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        self.page = page
        super().__init__(*args, **kwargs)

    @property
    def is_destructive(self) -> bool:
        return False

    @property
    def consequence(self) -> str:
        """Numbers that depend on the choices; empty if the command's own text is enough."""
        return ""

    def chosen(self) -> RunCommand | AllowFaults:
        """The command with the cleaned values of the form."""
        raise NotImplementedError

    def ask(self, who: str) -> RequestId:
        """Asks the service for the action. Raises Rejected if it refuses."""
        reason = self.cleaned_data["reason"]
        return services.ask(self.page.name, self.chosen(), who=who, why=reason)


class LabelField(forms.CharField):
    """The label of a savepoint. The service checks its content."""

    def __init__(self, **kwargs: Any) -> None:
        attributes = {"autocomplete": "off", "maxlength": str(LABEL_LENGTH_MAX)}
        super().__init__(
            label="Label",
            required=False,
            help_text="Optional: a name to find it by. You can change it later.",
            widget=forms.TextInput(attrs=attributes),
            **kwargs,
        )


class FormatField(forms.ChoiceField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            label="Format",
            choices=FORMATS,
            initial=SavepointFormat.CANONICAL.value,
            required=False,
            help_text="Canonical is for keeping: any state backend can restore it, and any program"
            " can read it. Native is faster to write and restore, but mainly for the same backend.",
            **kwargs,
        )


EXAMPLE = "execution.checkpointing.interval: 500 ms"


class PairsField(forms.CharField):
    """One `name: value` per line. Cleans to a dictionary; empty if nothing is given."""

    widget = forms.Textarea

    def __init__(self, *, example: str = EXAMPLE, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)
        self._example = example
        self.widget.attrs |= {
            "rows": 3,
            "placeholder": example,
            "spellcheck": "false",
            "autocomplete": "off",
        }

    def clean(self, value: Any) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for line in super().clean(value).splitlines():
            if line.strip():
                name, text = self._pair(line)
                if name in pairs:
                    raise forms.ValidationError(f"{name} is given twice; keep one of the lines.")
                pairs[name] = text
        return pairs

    def _pair(self, line: str) -> tuple[str, str]:
        name, separator, text = line.partition(":")
        if not separator:
            raise forms.ValidationError(
                f"{line.strip()!r} has no colon; write it like {self._example!r}."
            )
        return name.strip(), text.strip()


class LinesField(forms.CharField):
    """One text per line. Cleans to a list; empty if nothing is given."""

    widget = forms.Textarea

    def __init__(self, *, example: str, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)
        self.widget.attrs |= {"rows": 2, "placeholder": example} | PLAIN_TEXT

    def clean(self, value: Any) -> list[str]:
        return [line.strip() for line in super().clean(value).splitlines() if line.strip()]


class SavepointForm(ActionForm):
    label = LabelField()
    savepoint_format = FormatField()

    @property
    def of_savepoint(self) -> dict[str, Any]:
        """The fields of a command that takes a savepoint."""
        chosen = self.cleaned_data["savepoint_format"] or SavepointFormat.CANONICAL
        return {"format": SavepointFormat(chosen), "label": self.cleaned_data["label"]}


class ConfirmedForm(ActionForm):
    """A form for irreversible actions: the person has to type the name."""

    named = "pipeline"
    confirmation = forms.CharField(widget=forms.TextInput(attrs=PLAIN_TEXT))

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        self.fields["confirmation"].label = f"Type the {self.named}'s name to confirm"
        self.fields["confirmation"].help_text = self.name_to_type

    @property
    def is_destructive(self) -> bool:
        return True

    @property
    def name_to_type(self) -> str:
        return self.page.name

    def clean_confirmation(self) -> str:
        typed: str = self.cleaned_data["confirmation"].strip()
        if typed != self.name_to_type:
            raise forms.ValidationError(f"The name of this {self.named} is {self.name_to_type}.")
        return typed
