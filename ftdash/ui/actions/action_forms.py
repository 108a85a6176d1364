"""The form to change the settings of a run that goes on: only the settings to change.

The settings table decides which ones may change and which values are valid; the engine checks for
contradictions.

The forms to end a run: with a savepoint and perhaps a drain, or at once.

All choices apart from the end itself are off by default.

The forms to label a savepoint, or to dispose of one.

The savepoint comes with the address that opened the form, and stays in the form.
"""

from typing import Any

from django import forms

from ftdash.checkpoints.answers import Savepoint
from ftdash.checkpoints.queries.savepoints import others_than, savepoint_at
from ftdash.formats import plural, size, utc
from ftdash.jobs.answers import PipelinePage
from ftdash.jobs.models import RequestKind
from ftdash.ui.actions.forms import (
    PLAIN_TEXT,
    ActionForm,
    ConfirmedForm,
    FormatField,
    LabelField,
    SavepointForm,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.settings.readers import Definition
from pipelines.domain.settings.table import DEFINITIONS

CHANGE_LIVE = [definition for definition in DEFINITIONS if definition.changes_live]


class ChangeForm(ActionForm):
    """One empty field per setting, so that another person's change in the meantime stays.

    The reason comes first, where a dialog opens: after so many fields, a phone would not show what
    the change does.
    """

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
        offered = self.page.actions[RequestKind.CHANGE_SETTINGS].consequence
        return f"{offered} What is left empty stays as it is."

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


def _label(definition: Definition, given: str | None) -> str:
    name = definition.key.rpartition(".")[2].replace("-", " ").capitalize()
    return (
        f"{name}, now {definition.default} by default" if given is None else f"{name}, now {given}"
    )


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


class OfSavepointForm(ActionForm):
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
    label = LabelField()

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        if self.savepoint is not None:
            self.initial.setdefault("label", self.savepoint.label)

    @property
    def consequence(self) -> str:
        return "" if self.savepoint is None else f"It is about {named(self.savepoint)}."


class DisposeForm(OfSavepointForm, ConfirmedForm):
    named = "savepoint"

    @property
    def name_to_type(self) -> str:
        return self.savepoint.directory if self.savepoint else ""

    @property
    def consequence(self) -> str:
        return "" if self.savepoint is None else loss(self.savepoint)


def named(point: Savepoint) -> str:
    label = f" “{point.label}”" if point.label else ""
    return f"savepoint {point.checkpoint_id}{label} of run {point.run_number}"


def loss(point: Savepoint) -> str:
    """What is lost with the files, in numbers."""
    others = others_than(point)
    sentences = [
        f"The files of {named(point)} are deleted for good: {size(point.state_bytes)} of state"
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
