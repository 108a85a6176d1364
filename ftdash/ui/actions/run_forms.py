"""The forms for commands to a run that goes on: from the values to the command, one form each.

A form that ends the run has all choices apart from the end itself off by default. The form that
changes settings shows only those that may change; the settings table decides which ones, and which
values are valid.
"""

from typing import Any

from django import forms

from ftdash.formats import utc
from ftdash.jobs.answers import PipelinePage
from ftdash.ui.actions.forms import PLAIN_TEXT, ActionForm, ConfirmedForm, SavepointForm
from pipelines.domain.commands import (
    AllowFaults,
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    KillSlot,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.settings.readers import Definition
from pipelines.domain.settings.table import DEFINITIONS
from pipelines.domain.status import KillMoment

MOMENTS = (
    (KillMoment.NOW.value, "now"),
    (KillMoment.ALIGNING.value, "the next time it holds an input back for a checkpoint"),
    (
        KillMoment.CUTTING.value,
        "the next time it has forwarded a barrier, before it cuts its state",
    ),
    (KillMoment.UPLOADING.value, "the next time its state is cut but not yet written"),
    (KillMoment.UPLOADED.value, "the next time its state is durable but not yet acknowledged"),
    (KillMoment.COMMITTING.value, "the next time it is asked to commit, before it commits"),
    (KillMoment.COMMITTED.value, "the next time it has committed, before it says so"),
    (KillMoment.RESTORING.value, "now, and its replacement when it is given the state to restore"),
    (KillMoment.OPENED.value, "now, and its replacement once it has its first state"),
    (KillMoment.RESTORED.value, "now, and its replacement once it has restored"),
)


class CheckpointForm(ActionForm):
    command = TriggerCheckpoint
    title = "Trigger a checkpoint"
    button = "Trigger checkpoint"

    def chosen(self) -> TriggerCheckpoint:
        return TriggerCheckpoint()


class TakeSavepointForm(SavepointForm):
    command = TakeSavepoint
    title = "Take a savepoint"
    button = "Take savepoint"
    look = "primary"

    def chosen(self) -> TakeSavepoint:
        return TakeSavepoint(**self.of_savepoint)


FOR_GOOD = (
    "Fired windows cannot be undone: a run restored from this savepoint drops every further record"
    " as late. Only for a pipeline that will not go on."
)


class StopForm(SavepointForm, ConfirmedForm):
    """Asks for the name only for a drain; a run that stopped without one can be continued."""

    command = StopWithSavepoint
    title = "Stop with a savepoint"
    button = "Stop with savepoint"

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
        return f"{self.page.actions[self.command.kind].consequence} {self._fired}"

    def clean_confirmation(self) -> str:
        return super().clean_confirmation() if self.cleaned_data["drain"] else ""

    def chosen(self) -> StopWithSavepoint:
        return StopWithSavepoint(drain=self.cleaned_data["drain"], **self.of_savepoint)

    @property
    def _fired(self) -> str:
        reached = self.page.run.watermark_at if self.page.run else None
        behind = f", also those that end after the watermark of {utc(reached)}" if reached else ""
        return (
            f"Every window and timer fires before the savepoint{behind}, with what has come so far."
        )


class CancelForm(SavepointForm, ConfirmedForm):
    command = Cancel
    title = "Cancel the run"
    button = "Cancel the run"
    look = "danger"

    with_savepoint = forms.BooleanField(
        label="Take a savepoint first",
        help_text="Its output is committed before the run is cancelled.",
        required=False,
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.fields["label"].label = "Label of that savepoint"
        self.fields["savepoint_format"].label = "Format of that savepoint"

    @property
    def consequence(self) -> str:
        """Covers both choices."""
        return (
            f"{self.page.actions[self.command.kind].consequence} With a savepoint first they are:"
            " the run ends once it is complete, and goes on if it fails."
        )

    def chosen(self) -> Cancel | CancelWithSavepoint:
        if not self.cleaned_data["with_savepoint"]:
            return Cancel()
        return CancelWithSavepoint(**self.of_savepoint)


CHANGE_LIVE = [definition for definition in DEFINITIONS if definition.changes_live]


class ChangeForm(ActionForm):
    """One empty field per setting, so that another person's change in the meantime stays.

    The reason comes first, where a dialog opens: after so many fields, a phone would not show what
    the change does.
    """

    command = ChangeSettings
    title = "Change settings of the run"
    button = "Change settings"

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        given = page.run.settings if page.run else {}
        for definition in CHANGE_LIVE:
            self.fields[definition.field] = forms.CharField(
                label=_label(definition, given.get(definition.key)),
                help_text=definition.help,
                required=False,
                widget=forms.TextInput(attrs=PLAIN_TEXT),
            )

    @property
    def consequence(self) -> str:
        offered = self.page.actions[self.command.kind].consequence
        return f"{offered} Empty fields keep their value."

    def clean(self) -> dict[str, Any]:
        """`changes` holds the filled-in fields, by key."""
        typed = {d: self.cleaned_data.get(d.field) for d in CHANGE_LIVE}
        changes = {definition: text for definition, text in typed.items() if text}
        for definition, text in changes.items():
            try:
                definition.parse(text)
            except Rejected as refusal:
                self.add_error(definition.field, str(refusal))
        return {**self.cleaned_data, "changes": {d.key: text for d, text in changes.items()}}

    def chosen(self) -> ChangeSettings:
        return ChangeSettings(settings=self.cleaned_data["changes"])


def _label(definition: Definition, given: str | None) -> str:
    name = definition.key.rpartition(".")[2].replace("-", " ").capitalize()
    return (
        f"{name}, now {definition.default} by default" if given is None else f"{name}, now {given}"
    )


class KillSlotForm(ConfirmedForm):
    command = KillSlot
    title = "Kill a slot"
    button = "Kill slot"
    look = "danger"

    slot = forms.TypedChoiceField(label="Slot", coerce=int)
    moment = forms.ChoiceField(label="When", choices=MOMENTS, initial=KillMoment.NOW.value)

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        slots = page.run.slots if page.run else []
        self.fields["slot"].choices = [  # type: ignore[attr-defined]
            (each.slot, f"slot {each.slot}, process {each.pid} on {each.host}") for each in slots
        ]

    def chosen(self) -> KillSlot:
        moment = KillMoment(self.cleaned_data["moment"])
        return KillSlot(slot=self.cleaned_data["slot"], moment=moment)


class AllowFaultsForm(ActionForm):
    command = AllowFaults
    title = "Allow or forbid faults on purpose"
    button = "Save"
    is_button = False

    is_allowed = forms.BooleanField(label="Faults on purpose are allowed", required=False)

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        self.fields["is_allowed"].initial = page.allows_faults

    def chosen(self) -> AllowFaults:
        return AllowFaults(allowed=self.cleaned_data["is_allowed"])
