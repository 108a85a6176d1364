"""The forms that start a run: from the beginning, from a point, with the quarantine, by an upgrade.

Before a restore, the page shows if it would work, and how far the point has been read. Findings
that need no files appear at once. A worker reads the files, and the page polls its progress until
it ends.

This module imports nothing from an uploaded wheel; `CodeStore` refuses a file that is no wheel.
"""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.conf import settings as configuration
from django.contrib.auth.decorators import permission_required
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.answers import Reading, RecoveryPoint
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.formats import plural, size, utc
from ftdash.incidents.causes import GAPS, NAMES, PROPOSE
from ftdash.jobs.answers import PipelinePage
from ftdash.jobs.validation import package_store
from ftdash.points.queries import (
    CommittedOutput,
    committed_output,
    output_to_put_back,
    point_choice,
    rows_after,
)
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore, newest_point
from ftdash.requests import services
from ftdash.requests.storing import pipeline_named
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.actions.forms import ActionForm, ConfirmedForm, LinesField, PairsField
from ftdash.upgrades import packages
from ftdash.upgrades import services as upgrade_services
from pipelines.domain.commands import RestorePipeline, StartPipeline, UndoStart, UpgradePipeline
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import ClaimMode
from pipelines.points.verdict import Check, Fitness, Verdict

CLAIM_MODES = (
    (ClaimMode.NO_CLAIM.value, "stays as it is"),
    (ClaimMode.CLAIM.value, "belongs to the new run, which deletes it when newer ones replace it"),
)
UNFIT = {Fitness.GONE: ", its files are gone", Fitness.REFUSED: ", it was refused"}


class ParallelismForm(forms.Form):
    # No bounds: the services refuse values out of range, in a sentence that names the maximum.
    parallelism = forms.IntegerField(label="Parallelism", widget=forms.NumberInput())


class StartForm(ParallelismForm, ConfirmedForm):
    """Asks for the name, because a start leaves behind what an earlier run has made."""

    command = StartPipeline
    title = "Start over from the beginning"
    button = "Start over"
    look = "danger"

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        self.fields["parallelism"].initial = page.parallelism
        self.fields["parallelism"].help_text = f"1 to {page.max_parallelism}"

    @property
    def consequence(self) -> str:
        offered = self.page.actions[self.command.kind].consequence
        return " ".join([offered, *left_behind(self.page)])

    def ask(self, who: str) -> RequestId:
        page = self.page
        return services.submit_pipeline(
            name=page.name,
            flow=page.flow,
            parallelism=self.cleaned_data["parallelism"],
            max_parallelism=page.max_parallelism,
            parameters=page.parameters,
            settings=page.settings,
            allows_faults=page.allows_faults,
            requester=who,
            reason=self.cleaned_data["reason"],
        )


class UndoStartForm(ActionForm):
    """Asks for no name, because nothing that a reader has seen is lost."""

    command = UndoStart
    title = "Undo the start, and put the output back"
    button = "Undo start"
    look = "primary"

    @property
    def consequence(self) -> str:
        offered = self.page.actions[self.command.kind].consequence
        return " ".join([offered, *_put_back(self.page)])

    def chosen(self) -> UndoStart:
        return UndoStart()


def _put_back(page: PipelinePage) -> list[str]:
    back = _worded(output_to_put_back(pipeline_named(page.name)))
    return [f"It is {back}."] if back else []


def _worded(outputs: list[CommittedOutput]) -> str:
    return "; ".join(
        f"{'' if each.is_whole else 'more than '}{plural(each.rows, 'row')} of {each.sink},"
        f" committed from {utc(each.first_at)} to {utc(each.last_at)}"
        for each in outputs
    )


def left_behind(page: PipelinePage) -> list[str]:
    """Says what a start from the beginning costs, in sentences with numbers."""
    choice = point_choice(page.name)
    newest = next((each.point for each in choice.points), None) if choice else None
    said = []
    if newest is not None:
        said.append(
            f"Its state is empty: that of {newest.kind.lower()} {newest.checkpoint_id}"
            f" ({size(newest.state_bytes)}, made of {plural(newest.source_records, 'record')}) is"
            " left behind."
        )
    outputs = _worded(committed_output(pipeline_named(page.name)))
    if outputs:
        said.append(f"Output is set aside: {outputs}.")
        said.append("You can undo the start until the new run has completed its first checkpoint.")
        said.append(
            "Input that its source no longer keeps cannot be read again, nor its output be made"
            " again."
        )
    if newest is not None:
        said.append("To continue where it stopped, choose Restore instead.")
    return said


class RestoreForm(ParallelismForm, ConfirmedForm):
    command = RestorePipeline
    title = "Restore from a point, or rescale"
    button = "Restore"
    look = "primary"

    path = forms.ChoiceField(label="Recovery point")
    claim_mode = forms.ChoiceField(
        label="Afterwards the point",
        choices=CLAIM_MODES,
        initial=ClaimMode.NO_CLAIM.value,
        required=False,
    )
    allow_non_restored_state = forms.BooleanField(
        label="Leave behind state of operators that the pipeline no longer has",
        required=False,
    )
    settings = PairsField(
        label="Changed settings",
        help_text="One per line. The others stay as they are, and later runs keep the change.",
    )
    parameters = PairsField(
        label="Changed parameters",
        example="name: value",
        help_text="One per line; later runs keep the change.",
    )
    renamed = PairsField(
        label="Renamed operators",
        example="old-uid: new-uid",
        help_text="One per line: an operator's uid in the point, and the one it has now.",
    )
    accepted_gaps = LinesField(
        label="Input to continue without",
        example="source split first-last",
        help_text="One gap per line, as the verdict names it. These records are lost for good.",
    )

    def __init__(self, *args: Any, page: PipelinePage, proposed: str = "", **kwargs: Any) -> None:
        """`proposed` is a sentence about the initial values."""
        super().__init__(*args, page=page, **kwargs)
        self._proposed = proposed
        choice = point_choice(page.name)
        found = choice.points if choice else []
        labels = {each.point.path: label_of(each.point, page.name, each.fitness) for each in found}
        given = (self.data or self.initial).get("path", "")
        other = checkpoint_queries.recovery_point(given) if given not in labels else None
        if other:
            # Another pipeline's point, or an old one: the preflight says if it fits.
            fitness = Fitness.UNREAD if other.is_present else Fitness.GONE
            labels[other.path] = label_of(other, page.name, fitness)
        self.fields["path"].choices = labels.items()  # type: ignore[attr-defined]
        if choice and choice.recommended:
            self.fields["path"].initial = choice.recommended.point.path
        self.fields["parallelism"].initial = page.parallelism
        self.fields["parallelism"].help_text = (
            f"1 to {page.max_parallelism}; a value other than the point's rescales the pipeline and"
            " redistributes its state."
        )

    def ask(self, who: str) -> RequestId:
        values = self.cleaned_data
        restore = Restore(
            pipeline=self.page.name,
            path=values["path"],
            parallelism=values["parallelism"],
            allow_non_restored_state=values["allow_non_restored_state"],
            settings=values["settings"],
            parameters=values["parameters"],
            renamed=values["renamed"],
            accepted_gaps=values["accepted_gaps"],
            reads_files=False,
        )
        claim_mode = ClaimMode(values["claim_mode"] or ClaimMode.NO_CLAIM)
        reason = values["reason"]
        return point_services.restore(restore, requester=who, reason=reason, claim_mode=claim_mode)

    @property
    def consequence(self) -> str:
        offered = self.page.actions[self.command.kind].consequence
        return f"{offered} {self._proposed}".rstrip()


class ReplayForm(ActionForm):
    """Replays from the newest point, so that nothing written since is set aside."""

    command = RestorePipeline
    title = "Replay the quarantine"
    button = "Replay"
    is_button = False

    @property
    def consequence(self) -> str:
        return (
            "A new run starts from the newest point and processes its quarantined records again"
            " before new ones."
        )

    def ask(self, who: str) -> RequestId:
        name, reason = self.page.name, self.cleaned_data["reason"]
        restore = Restore(pipeline=name, path=newest_point(name), reads_files=False, replays=())
        return point_services.restore(restore, requester=who, reason=reason)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The initial values of a restore's form, and a sentence about them."""

    values: dict[str, str]
    sentence: str = ""


def proposal(page: PipelinePage, given: dict[str, str]) -> Proposal:
    """Returns the values that the preflight proposes for a point, if the address asks for them.

    The person looks at them, and decides. This reads the sources, so it takes as long as a
    preflight.
    """
    wanted, values = given.get(PROPOSE), {name: given[name] for name in given if name != PROPOSE}
    try:
        restore = _restore_of(page, RestoreForm(initial=values, page=page)) if wanted else None
        found = point_services.preflight(restore) if restore else None
    except (Rejected, forms.ValidationError):
        return Proposal(values)  # the verdict beside the form says why
    if restore is None or found is None:
        return Proposal(values)
    values["path"] = restore.path
    if wanted == GAPS and found.reaching:
        sentence = "It begins with a point from which the sources still have everything."
        return Proposal(values | {"path": found.reaching}, sentence)
    if wanted == GAPS and found.gaps:
        lost = " and ".join(gap.lost for gap in found.gaps)
        sentence = f"If you confirm it, you accept the loss of {lost}."
        return Proposal(values | {"accepted_gaps": found.with_all_gaps}, sentence)
    if wanted == NAMES and found.likely_names:
        lines = [f"{old}: {new}" for old, new in found.likely_names.items()]
        named = " and ".join(f"{old!r} to {new!r}" for old, new in found.likely_names.items())
        sentence = f"It maps {named}: same state, same schema. See that you have renamed it so."
        return Proposal(values | {"renamed": "\n".join(lines)}, sentence)
    return Proposal(values)


def label_of(point: RecoveryPoint, pipeline: str, fitness: Fitness) -> str:
    """Describes a point, and marks one that cannot be chosen, for people who look no further."""
    newest = " (newest)" if point.is_newest else ""
    called = f"{point.label}: " if point.label else ""
    other = "" if point.pipeline == pipeline else f" of {point.pipeline}"
    return (
        f"{called}{point.kind.lower()} {point.checkpoint_id} of run {point.run_number}{other}"
        f"{newest}, "
        f"{utc(point.completed_at)}, {size(point.state_bytes)}, "
        f"parallelism {point.parallelism}{UNFIT.get(fitness, '')}"
    )


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The check of a restore before it starts. `refusal` says why nothing could be checked."""

    path: str
    verdict: Verdict | None = None
    refusal: str = ""
    inspection: Reading | None = None
    not_read: str = ""  # why its files are not read beforehand
    rows_set_aside: int | None = None  # None: not known

    @property
    def is_possible(self) -> bool:
        found = self.inspection.problem if self.inspection else ""
        return self.verdict is not None and self.verdict.is_possible and not found

    @property
    def not_known(self) -> str:
        """Says why a finding is missing that a person would expect."""
        if self.verdict is None:
            return ""
        if self.verdict.found(Check.PIPELINE):
            return "State, files and sources were not checked, because of this:"
        if not self.verdict.is_possible:
            return ""
        if self.verdict.records_to_replay is None:
            return "How much would be read again is not known: it has completed no checkpoint."
        if self.verdict.estimated_ms is None:
            return "How long it takes is not known before a recovery of this pipeline was measured."
        return ""


@require_GET
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def verdict(request: HttpRequest, name: str) -> HttpResponse:
    page = queries.pipeline_page(name)
    if page is None:
        raise Http404("There is no such pipeline.")
    found = looked_at(page, RestoreForm(initial=request.GET.dict(), page=page))
    return render(request, "actions/findings.html", {"page": page, "verdict": found})


@require_GET
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def reading(request: HttpRequest, name: str) -> HttpResponse:
    path = request.GET.get("path", "")
    found = LookedAt(path, inspection=point_services.inspection_of(path))
    return render(request, "actions/reading.html", {"page": {"name": name}, "verdict": found})


def looked_at(page: PipelinePage, form: RestoreForm) -> LookedAt | None:
    """Checks the restore that the form describes. Returns None if there is no point to choose."""
    try:
        restore = _restore_of(page, form)
    except forms.ValidationError as refusal:
        return LookedAt("", refusal=" ".join(refusal.messages))
    if restore is None:
        return None
    try:
        found = point_services.preflight(restore)
    except Rejected as refusal:
        return LookedAt(restore.path, refusal=str(refusal))
    if not found.is_possible:
        return LookedAt(restore.path, found)
    rows = rows_after(restore.path, pipeline_named(page.name))
    try:
        point_services.begin_inspection(restore.path)
    except Rejected as refusal:  # too many readings are under way; the restore may still proceed
        return LookedAt(restore.path, found, not_read=str(refusal), rows_set_aside=rows)
    inspection = point_services.inspection_of(restore.path)
    return LookedAt(restore.path, found, inspection=inspection, rows_set_aside=rows)


def _restore_of(page: PipelinePage, form: RestoreForm) -> Restore | None:
    """Returns the restore that the form describes now, or None if there is no point to choose.

    Unchanged fields have their initial values. Raises ValidationError for settings or parameters
    that cannot be read.
    """
    choices = [path for path, _ in form.fields["path"].choices]  # type: ignore[attr-defined]
    path = form["path"].value() or next(iter(choices), "")
    if not path:
        return None
    parallelism = str(form["parallelism"].value())
    return Restore(
        pipeline=page.name,
        path=path,
        parallelism=int(parallelism) if parallelism.isdecimal() else page.parallelism,
        allow_non_restored_state=form["allow_non_restored_state"].value() in (True, "on"),
        settings=form.fields["settings"].clean(form["settings"].value()),
        parameters=form.fields["parameters"].clean(form["parameters"].value()),
        renamed=form.fields["renamed"].clean(form["renamed"].value()),
        accepted_gaps=form.fields["accepted_gaps"].clean(form["accepted_gaps"].value()),
        reads_files=False,
    )


NONE = ("", "the wheel below")


class UpgradeForm(ActionForm):
    command = UpgradePipeline
    title = "Upgrade to other code"
    button = "Upgrade ..."

    package = forms.ChoiceField(label="Package", required=False)
    wheel = forms.FileField(label="Or a wheel from your computer", required=False)
    allow_non_restored_state = forms.BooleanField(
        label="Leave behind state of operators that the new code no longer has",
        required=False,
    )

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        packages = [(each.sha256, each.described) for each in package_store().listed()]
        self.fields["package"].choices = [NONE, *packages]  # type: ignore[attr-defined]
        self.fields[
            "wheel"
        ].help_text = (
            f"Up to {size(configuration.PACKAGE_BYTES_MAX)}. ftdash keeps it under its SHA-256."
        )

    def clean(self) -> dict[str, Any]:
        values = self.cleaned_data
        has_package, has_wheel = bool(values.get("package")), bool(values.get("wheel"))
        if has_package == has_wheel:
            self.add_error("package", "Choose a package or a wheel, one of the two.")
        return values

    def ask(self, who: str) -> RequestId:
        """Asks the service for the upgrade. Raises Rejected if it refuses."""
        values = self.cleaned_data
        wheel, why = values["wheel"], values["reason"]
        code = _kept(wheel, who, why) if wheel else _of_store(values["package"])
        return upgrade_services.upgrade(
            pipeline=self.page.name,
            code=code,
            requester=who,
            reason=why,
            allow_non_restored_state=values["allow_non_restored_state"],
        )


def _of_store(sha256: str) -> ShippedCode:
    return package_store().find(sha256)


def _kept(given: "UploadedFile[bytes]", who: str, why: str) -> ShippedCode:
    """Adds the wheel to the store."""
    return packages.upload(given.name or "", given.size or 0, given.chunks(), who=who, reason=why)
