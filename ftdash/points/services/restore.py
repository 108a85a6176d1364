"""Restores a pipeline from a recovery point, after the preflight, or replays its quarantine.

The preflight refuses at once what cannot work, with all the reasons, and starts nothing. A command
reads every byte of the point for it. A page would wait too long, so a worker reads it
(`inspection_of`).

A replay passes quarantined records to the operators once more, after a function was corrected. This
module chooses its point and previews it.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
from django.conf import settings as configuration
from django.db import transaction
from django.utils import timezone

from ftdash.checkpoints.answers import Reading
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.checkpoints.queries.savepoints import read_manifest, reading_of
from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.damage import on_damage_found, passing_on_damage
from ftdash.jobs.directories import quarantine_directory, run_directory
from ftdash.jobs.fresh_code import answer
from ftdash.jobs.models import Pipeline, PointInspection, Run
from ftdash.jobs.validation import check_place, check_startable, roots
from ftdash.points.services.comparisons import check_free_space
from ftdash.points.services.disposal import check_claimable, check_disposable
from ftdash.requests.storing import (
    Question,
    already_asked,
    check_possible,
    new_run,
    pipeline_named,
    refusals_logged,
    store,
    store_start,
)
from ftdash.runs.queries.planning import measured
from pipelines.domain.commands import DisposeSavepoint, RestorePipeline
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.gaps import checked_gaps
from pipelines.domain.ids import RequestId, Uid
from pipelines.domain.run import ShippedCode, scheme_of
from pipelines.domain.settings.parsing import MAX_PARALLELISM_KEY
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import ClaimMode
from pipelines.points.verdict import Check, Outcome, Verdict


@dataclass(frozen=True, slots=True)
class ReplayOutlook:
    """`records` counts by source; if no replay is possible now, `refusal` says why."""

    path: str = ""
    records: dict[str, int] = field(default_factory=dict)
    refusal: str = ""

    @property
    def count(self) -> int:
        return sum(self.records.values())


def newest_point(pipeline: str) -> str:
    """Raises Rejected if there is no such pipeline, or no point to start from."""
    pipeline_named(pipeline)
    points = checkpoint_queries.recovery_points(pipeline)
    point = next((each for each in points if each.is_present), None)
    if point is None:
        raise Rejected(
            f"{pipeline} has no recovery point to continue from, and a quarantine belongs to one;"
            " start the pipeline from the beginning instead."
        )
    return point.path


def outlook(pipeline: Pipeline) -> ReplayOutlook:
    """Previews a replay from the newest point."""
    path = ""
    try:
        path = newest_point(pipeline.name)
        check_place(path)
        return ReplayOutlook(path, replayable(pipeline, path, pipeline.parameters))
    except Rejected as refusal:
        return ReplayOutlook(path, refusal=str(refusal))


def replayable(
    pipeline: Pipeline, path: str, parameters: dict[str, str], only: Collection[str] = ()
) -> dict[str, int]:
    """Returns how many records each source would supply again. Raises Rejected."""
    # The flows load Arrow, which takes longer than a page should; most requests do not need it.
    from pipelines.points.code_process import MayReplay
    from pipelines.storage.stores import CheckpointStores

    try:
        with passing_on_damage(path):
            CheckpointStores(roots(), max_memory_state_bytes=0).manifest(path)
    except CorruptSnapshot as damage:
        raise Rejected(f"{path} cannot be restored: {damage}") from damage
    except Retryable as error:
        raise Rejected(f"{path} cannot be checked now, try again later: {error}") from error
    question = MayReplay(
        flow=pipeline.flow,
        code=pipeline.shipped_code,
        jobs_root=str(configuration.JOBS_ROOT),
        parameters=parameters,
        settings=pipeline.settings,
        path=path,
        quarantine=str(quarantine_directory(pipeline)),
        only=list(only),
        roots=roots(),
    )
    return answer(question, dict[str, int])


FRESH_FOR = timedelta(minutes=10)
"""How long the findings of an inspection count as current."""

STALLED_AFTER = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """The point to restore, and how. None means: as the pipeline has it."""

    pipeline: str
    path: str
    parallelism: int | None = None
    parameters: dict[str, str] | None = None  # replace those of the same name
    settings: dict[str, str] | None = None  # likewise; the pipeline keeps both for later runs
    allow_non_restored_state: bool = False
    reads_files: bool = True  # False: the findings of an inspection count, if there was one
    renamed: dict[str, str] | None = None  # uids of operators in the point, to those of now
    accepted_gaps: Sequence[str] = ()  # texts of input behind the point that is gone, and lost
    replays: Collection[str] | None = None  # sources whose quarantine is read again; empty: all
    code: ShippedCode | None = None  # the package that holds the flow from now on
    is_installed: bool = False  # an installed package holds the flow from now on

    @property
    def new_names(self) -> dict[Uid, Uid]:
        return {Uid(old): Uid(new) for old, new in (self.renamed or {}).items()}

    @property
    def gaps(self) -> list[str]:
        """Raises Rejected if one of them names no gap."""
        return checked_gaps(list(self.accepted_gaps))

    def parameters_over(self, own: dict[str, str]) -> dict[str, str]:
        return {**own, **(self.parameters or {})}

    def settings_over(self, own: dict[str, str]) -> dict[str, str]:
        return {**own, **(self.settings or {})}


def preflight(wanted: Restore) -> Verdict:
    """Returns what speaks for and against the restore; stores and starts nothing.

    Raises Rejected when there is no such pipeline, or the path lies outside the storage.
    """
    row, path = pipeline_named(wanted.pipeline), _whole(wanted.path)
    check_place(path)
    return _verdict(row, path, wanted)


def fit_of(wanted: Restore) -> Verdict:
    """Does the same for a point that its run may delete at any moment: it reports no damage."""
    row, path = pipeline_named(wanted.pipeline), _whole(wanted.path)
    check_place(path)
    return _looked_at(row, path, wanted)


def begin_inspection(path: str) -> None:
    """Have a worker read the whole point, unless one is reading it or has just found it whole.

    Raises Rejected when the path lies outside the storage, or when too many points are read.
    """
    path, now = _whole(path), timezone.now()
    check_place(path)
    known = PointInspection.objects.filter(path=path).first()
    if known is not None and not _has_to_be_read(known, now):
        return
    check_free_space(PointInspection.objects.all(), "verifications")
    row, is_new = PointInspection.objects.get_or_create(path=path, defaults={"moved_at": now})
    if _has_to_be_read(row, now):
        fresh = PointInspection(pk=row.pk, path=path, moved_at=now)
        fresh.save(force_update=True)
        is_new = True
    if is_new:
        publish_on_commit(Errand.INSPECT_POINT, row.pk)


def _has_to_be_read(row: PointInspection, now: datetime) -> bool:
    """Returns False while a worker reads it, and if one has just found it whole."""
    if row.ended_at is None:
        return False
    return bool(row.problem) or row.ended_at <= now - FRESH_FOR


def inspection_of(path: str) -> Reading | None:
    """Returns how far the worker has come. Asks one that has stopped halfway to continue."""
    row = PointInspection.objects.filter(path=_whole(path)).first()
    now = timezone.now()
    if row is not None and row.ended_at is None and row.moved_at < now - STALLED_AFTER:
        PointInspection.objects.filter(pk=row.pk).update(moved_at=now)
        publish_on_commit(Errand.INSPECT_POINT, row.pk)
    return reading_of(row) if row else None


def restore(
    wanted: Restore,
    *,
    requester: str,
    reason: str,
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM,
    master: str | None = None,
    request_id: str | None = None,
    is_of_upgrade: bool = False,
) -> RequestId:
    """Start a new run from a recovery point of this or another pipeline with the same uids.

    `is_of_upgrade`: see `check_possible`.
    """
    question = Question(wanted.pipeline, requester, reason, request_id)
    with refusals_logged(question, RestorePipeline, is_of_upgrade=is_of_upgrade):
        if known := already_asked(question, RestorePipeline):
            return known
        question = question.with_reason()
        row, path = pipeline_named(wanted.pipeline), _whole(wanted.path)
        check_possible(RestorePipeline, row, is_of_upgrade=is_of_upgrade)
        check_place(path)
        check_claimable(path, claim_mode)
        manifest = read_manifest(path)
        parallelism = row.parallelism if wanted.parallelism is None else wanted.parallelism
        parameters, settings = (
            wanted.parameters_over(row.parameters),
            wanted.settings_over(row.settings),
        )
        _check_not_bound(wanted, manifest)
        code = _code_of(wanted, row)
        found = check_startable(
            row.flow, parallelism, row.max_parallelism, parameters, settings, code
        )
        if not wanted.reads_files:
            _check_inspected(path)
        _check_verdict(_verdict(row, path, wanted), row)
        changes = changes_in(row.settings, settings), changes_in(row.parameters, parameters)
        row.parameters, row.settings = parameters, settings
        replayed = (
            {} if wanted.replays is None else replayable(row, path, parameters, wanted.replays)
        )
        with transaction.atomic():
            check_possible(RestorePipeline, row, is_of_upgrade=is_of_upgrade)
            row.code = None if code is None else msgspec.to_builtins(code)
            row.save(update_fields=["code", "parameters", "settings"])
            run = new_run(
                row,
                parallelism=parallelism,
                parameters=parameters,
                master=master,
                restored_from=path,
                claim_mode=claim_mode,
                allow_non_restored_state=wanted.allow_non_restored_state,
                first_checkpoint_id=manifest.checkpoint_id + 1,
                parent=Run.objects.filter(run_id=manifest.run_id).first(),
                replayed_sources=sorted(replayed),
                renamed_uids=wanted.renamed,
                accepted_gaps=wanted.gaps,
            )
            command = RestorePipeline(
                path=path,
                parallelism=parallelism,
                claim_mode=claim_mode,
                allow_non_restored_state=wanted.allow_non_restored_state,
                replayed=replayed,
                settings=changes[0],
                values=changes[1],
                renamed=wanted.new_names,
                accepted_gaps=wanted.gaps,
            )
            return store_start(question, command, run, found.sentence)


def dispose(
    *, pipeline: str, path: str, requester: str, reason: str, request_id: str | None = None
) -> RequestId:
    """Has a worker delete a savepoint's files for good. Raises Rejected if a run needs it."""
    question = Question(pipeline, requester, reason, request_id)
    with refusals_logged(question, DisposeSavepoint):
        path = _whole(path)
        if known := already_asked(question, DisposeSavepoint):
            return known
        question, row = question.with_reason(), pipeline_named(pipeline)
        check_place(path)
        check_disposable(path)
        with transaction.atomic():
            request = store(
                question,
                DisposeSavepoint(path=path),
                row,
                None,
                float(configuration.REQUEST_DEADLINE_S),
            )
            publish_on_commit(Errand.DISPOSE_OF_SAVEPOINT, request.pk)
        return RequestId(request.request_id)


def changes_in(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Returns the items that are new or have another value."""
    return {key: value for key, value in now.items() if before.get(key) != value}


def _check_not_bound(wanted: Restore, manifest: Manifest) -> None:
    """Raises Rejected for settings that the state of a point decides."""
    if MAX_PARALLELISM_KEY in (wanted.settings or {}):
        raise Rejected(
            f"{MAX_PARALLELISM_KEY} cannot change in a restore: the point deals its keys into"
            f" {manifest.max_parallelism} key groups. Start over with another one, or leave it out."
        )


def _code_of(wanted: Restore, row: Pipeline) -> ShippedCode | None:
    return None if wanted.is_installed else wanted.code or row.shipped_code


def _verdict(row: Pipeline, path: str, wanted: Restore) -> Verdict:
    found = _looked_at(row, path, wanted)
    if damage := _damage_in(found):
        on_damage_found(path, damage)
    return found


def _looked_at(row: Pipeline, path: str, wanted: Restore) -> Verdict:
    # The flows load Arrow, which takes longer than a page should; most requests need none.
    from pipelines.points.code_process import MayRestore
    from pipelines.points.preflight import RestoreQuestion

    known = checkpoint_queries.recovery_point(path)
    newest = row.runs.order_by("-number").first()
    question = RestoreQuestion(
        path=path,
        flow=row.flow,
        parameters=wanted.parameters_over(row.parameters),
        parallelism=row.parallelism if wanted.parallelism is None else wanted.parallelism,
        max_parallelism=row.max_parallelism,
        allow_non_restored_state=wanted.allow_non_restored_state,
        reads_files=wanted.reads_files,
        measured=measured(row, with_source_records=True),
        settings=wanted.settings_over(row.settings),
        changed_settings=changes_in(row.settings, wanted.settings_over(row.settings)),
        changed_parameters=changes_in(row.parameters, wanted.parameters_over(row.parameters)),
        refused_before=known.problem if known else "",
        installation=configuration.INSTALLATION_ID,
        newest_run="" if newest is None else str(run_directory(newest).path),
        new_names=wanted.new_names,
        accepted_gaps=tuple(wanted.gaps),
        other_points=_other_points(row, path),
    )
    about = MayRestore(
        flow=row.flow,
        code=_code_of(wanted, row),
        jobs_root=str(configuration.JOBS_ROOT),
        question=question,
        roots=roots(),
    )
    try:
        return answer(about, Verdict)
    except Retryable as error:
        raise Rejected(f"{path} cannot be checked now, try again later: {error}") from error


def _other_points(row: Pipeline, path: str) -> tuple[str, ...]:
    """Returns the pipeline's other points that are there and not found damaged, newest first."""
    points = checkpoint_queries.recovery_points(row.name)
    usable = (each.path for each in points if each.is_present and not each.problem)
    return tuple(each for each in usable if each != path)


def _damage_in(verdict: Verdict) -> str:
    """Returns the first damage, or an empty string if there is none."""
    of_files = (Check.MANIFEST, Check.FILES)
    refused = (each for each in verdict.findings if each.outcome is Outcome.REFUSED)
    return next((each.text for each in refused if each.check in of_files), "")


def _check_inspected(path: str) -> None:
    since = timezone.now() - FRESH_FOR
    damaged = PointInspection.objects.filter(path=path, ended_at__gt=since).exclude(problem="")
    if row := damaged.first():
        raise Rejected(f"{path} cannot be restored: {row.problem}")


def _check_verdict(verdict: Verdict, row: Pipeline) -> None:
    if verdict.is_possible:
        return
    more = len(verdict.refusals) - 1
    rest = f" The preflight names {more} more." if more else ""
    raise Rejected(
        f"{verdict.path} cannot be restored into {row.name!r}: {verdict.refusals[0]}{rest}"
    )


def _whole(path: str) -> str:
    return path if scheme_of(path) else os.path.abspath(path)
