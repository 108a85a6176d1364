"""The forms to end a run: with a savepoint and perhaps a drain, or at once.

All choices apart from the end itself are off by default.
"""

from django import forms

from ftdash.formats import utc
from ftdash.jobs.models import RequestKind
from ftdash.ui.actions.forms import ConfirmedForm, FormatField, LabelField, SavepointForm

FOR_GOOD = (
    "What is fired cannot be taken back: to what is restored from this savepoint every further"
    " record is late. For a pipeline that will not go on."
)


class StopForm(SavepointForm, ConfirmedForm):
    """Asks for the name only for a drain; a run that stopped without one can be continued."""

    drain = forms.BooleanField(label="Drain: event time ends first (MAX_WATERMARK)", required=False)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.fields["drain"].help_text = f"{self._fired} {FOR_GOOD}"
        self.fields["confirmation"].required = False
        self.fields["confirmation"].label = "If it drains, type the pipeline's name to confirm"

    @property
    def is_destructive(self) -> bool:
        return self["drain"].value() in (True, "on")

    @property
    def consequence(self) -> str:
        if not self.is_destructive:
            return ""
        return f"{self.page.actions[RequestKind.STOP_WITH_SAVEPOINT].consequence} {self._fired}"

    def clean_confirmation(self) -> str:
        return super().clean_confirmation() if self.cleaned_data["drain"] else ""

    @property
    def _fired(self) -> str:
        reached = self.page.run.watermark_at if self.page.run else None
        behind = f", also those that end after the watermark of {utc(reached)}" if reached else ""
        return (
            f"Every window and timer fires before the savepoint{behind}, with what has come so far."
        )


class CancelForm(ConfirmedForm):
    with_savepoint = forms.BooleanField(
        label="Take a savepoint first",
        help_text="Its output is committed before the run is cancelled.",
        required=False,
    )
    label = LabelField()
    savepoint_format = FormatField()

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.fields["label"].label = "Label of that savepoint"
        self.fields["savepoint_format"].label = "Format of that savepoint"

    @property
    def consequence(self) -> str:
        """Covers both choices."""
        return (
            f"{self.page.actions[RequestKind.CANCEL].consequence} With a savepoint first they are:"
            " the run ends once it is complete, and goes on if it fails."
        )
