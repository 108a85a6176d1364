"""The forms to label a savepoint, or to dispose of one.

The savepoint comes with the address that opened the form, and stays in the form.
"""

from typing import Any

from django import forms

from ftdash.checkpoints.answers import Savepoint
from ftdash.checkpoints.queries.savepoints import others_than, savepoint_at
from ftdash.formats import plural, size
from ftdash.jobs.answers import PipelinePage
from ftdash.points.services import disposal
from ftdash.points.services import restore as point_services
from ftdash.ui.actions.forms import ActionForm, ConfirmedForm, LabelField
from pipelines.domain.commands import DisposeSavepoint, LabelSavepoint
from pipelines.domain.ids import RequestId


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
    """What is lost with the files, in numbers."""
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
