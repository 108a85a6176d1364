"""Forms for commands to a run that has not ended and to its savepoints; each builds one command.

A form that ends the run has every other choice off by default. The form that
changes settings shows only those that may change; the settings table decides which ones, and which
values are valid. The savepoint to label or to dispose of comes with the address that opened the
form, and stays in the form.
"""

from typing import Any

from django import forms

from ftdash.checkpoints.answers import Savepoint
from ftdash.checkpoints.queries.savepoints import others_than, savepoint_at
from ftdash.formats import plural, size, utc
from ftdash.jobs.answers import PipelinePage
from ftdash.points.services import disposal
from ftdash.points.services import restore as point_services
from ftdash.ui.actions.forms import PLAIN_TEXT, ActionForm, ConfirmedForm, LabelField, SavepointForm
from pipelines.domain.commands import (
    AllowFaults,
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    DisposeSavepoint,
    KillSlot,
    LabelSavepoint,
    RetryNow,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.domain.settings.readers import Definition
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
    " as late. Use it only for a pipeline that will not continue."
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
            " the run ends once the savepoint is complete, and keeps running if it fails."
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
            self.fields[definition.key] = forms.CharField(
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
        typed = {d: self.cleaned_data.get(d.key) for d in CHANGE_LIVE}
        changes = {definition: text for definition, text in typed.items() if text}
        for definition, text in changes.items():
            try:
                definition.parse(text)
            except Rejected as refusal:
                self.add_error(definition.key, str(refusal))
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


class RetryForm(ActionForm):
    command = RetryNow
    title = "Retry now"
    button = "Retry now"
    look = "primary"

    def chosen(self) -> RetryNow:
        return RetryNow()


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


class OfSavepointForm(ActionForm):
    is_button = False
    path = forms.CharField(widget=forms.HiddenInput())

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        given = (args[0] if args else None) or kwargs.get("data") or kwargs.get("initial") or {}
        self.savepoint = savepoint_at(page.name, given.get("path", ""))
        super().__init__(*args, page=page, **kwargs)

    def clean_path(self) -> str:
        if self.savepoint is None:
            raise forms.ValidationError(f"{self.page.name} has no savepoint there.")
        return self.savepoint.path


class LabelForm(OfSavepointForm):
    command = LabelSavepoint
    title = "Label a savepoint"
    button = "Set the label"
    label = LabelField()

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        if self.savepoint is not None:
            self.initial.setdefault("label", self.savepoint.label)

    @property
    def consequence(self) -> str:
        return "" if self.savepoint is None else f"It is about {named(self.savepoint)}."

    def ask(self, who: str) -> RequestId:
        values = self.cleaned_data
        return disposal.label_savepoint(
            pipeline=self.page.name,
            path=values["path"],
            label=values["label"],
            requester=who,
            reason=values["reason"],
        )


class DisposeForm(OfSavepointForm, ConfirmedForm):
    command = DisposeSavepoint
    title = "Dispose of a savepoint"
    button = "Delete its files"
    named = "savepoint"

    @property
    def name_to_type(self) -> str:
        return self.savepoint.directory if self.savepoint else ""

    @property
    def consequence(self) -> str:
        return "" if self.savepoint is None else loss(self.savepoint)

    def ask(self, who: str) -> RequestId:
        path, reason = self.cleaned_data["path"], self.cleaned_data["reason"]
        return point_services.dispose(
            pipeline=self.page.name, path=path, requester=who, reason=reason
        )


def named(point: Savepoint) -> str:
    label = f" “{point.label}”" if point.label else ""
    return f"savepoint {point.checkpoint_id}{label} of run {point.run_number}"


def loss(point: Savepoint) -> str:
    """Says what is lost with the files, in numbers."""
    others = others_than(point)
    sentences = [
        f"The files of {named(point)} are deleted permanently: {size(point.state_bytes)} of state"
        f" after {plural(point.source_records, 'record')}."
    ]
    if others.newest_older_id is not None:
        between = others.records_between
        replay = f", {plural(between, 'record')} before it" if between is not None else ""
        sentences.append(
            f"{plural(others.count, 'other point')} of {point.pipeline} can be restored; the"
            f" nearest older one is {others.newest_older_kind} {others.newest_older_id}{replay}."
        )
    elif others.count:
        sentences.append(
            f"{plural(others.count, 'other point')} of {point.pipeline} can be restored, all of"
            " them younger."
        )
    else:
        sentences.append(f"Nothing else is left that {point.pipeline} could be restored from.")
    if point.restored_by:
        runs = plural(len(point.restored_by), "run")
        sentences.append(f"It is where {runs} began; what they have written stays.")
    return " ".join(sentences)
