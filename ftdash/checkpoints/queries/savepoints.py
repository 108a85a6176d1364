"""Savepoints and their contents: labels, origin, runs restored from them, rows of a state.

Facts come from rows; the disk is only asked whether the manifest is there. Contents come from the
point. A page of a state's rows is read within seconds or not at all; see
`pipelines.points.browsing`. Arrow is loaded only when a person looks into a point. Before a
restore, this module reads only the manifest and its digest, to refuse a wrong point before anything
starts. The driver that restores the point verifies that every file is there and unaltered.
"""

import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
from django.core.paginator import Paginator
from django.db.models import QuerySet, Sum

from ftdash.checkpoints.answers import (
    OtherPoints,
    Reading,
    RestoredRun,
    Savepoint,
    SavepointPage,
)
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.jobs.damage import passing_on_damage
from ftdash.jobs.models import PointInspection, PointLabel, Request, Run
from ftdash.jobs.validation import check_place, loaded_code, roots
from ftdash.times import watermark_moment
from pipelines.domain.commands import AnyCommand, SavepointCommand
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.run import scheme_of
from pipelines.domain.settings.resources import OBJECT_SCHEMES
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import CheckpointKind, ClaimMode, SavepointFormat
from pipelines.points.contents import (
    OperatorInside,
    Place,
    RowsPage,
    RowsQuestion,
    ShelfLife,
    Wanted,
)
from pipelines.storage.manifests import MANIFEST, seal, unseal

ROWS_PER_PAGE = 50
PAGE_S = 2.0
"""A page searches for rows no longer than this, and then says how far it got."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The state and the rows that a person looks at, and the place from which to show them."""

    uid: str
    state: str
    column: str = ""  # empty: all rows
    value: str = ""
    part: int = 0
    row: int = 0


def operators_in(path: str) -> list[OperatorInside]:
    """Raises Rejected if the point cannot be read, or is outside the storage."""
    from pipelines.points.contents import contents
    from pipelines.storage.stores import CheckpointStores

    check_place(path)
    store = CheckpointStores(roots(), max_memory_state_bytes=0)
    try:
        with passing_on_damage(path):
            return contents(store.manifest(path))
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{path} cannot be read: {error}") from error


def rows_in(path: str, looked: Looked) -> RowsPage:
    """Raises Rejected if there is no such state, column or value, or if it cannot be read."""
    from pipelines.points.browsing import rows_page
    from pipelines.storage.stores import CheckpointStores

    check_place(path)
    store = CheckpointStores(roots(), max_memory_state_bytes=0)
    until_s = time.monotonic() + PAGE_S
    wanted = Wanted(looked.column, looked.value) if looked.column and looked.value else None
    begin = Place(looked.part, looked.row)
    question = RowsQuestion(looked.uid, looked.state, begin, ROWS_PER_PAGE, wanted)
    try:
        with passing_on_damage(path):
            manifest = store.manifest(path)
            return rows_page(store, path, manifest, question, lambda: time.monotonic() >= until_s)
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{path} cannot be read: {error}") from error


def shelf_life_of(point: Savepoint) -> ShelfLife:
    """Returns the shelf life for the pipeline and parameters that wrote the point.

    It asks the sources, which takes a moment. Raises Rejected if the point cannot be read, or its
    pipeline can no longer be built.
    """
    from pipelines.points.fit import shelf_life
    from pipelines.storage.stores import CheckpointStores

    check_place(point.path)
    run = Run.objects.filter(run_id=point.run_id).first()
    try:
        with passing_on_damage(point.path):
            manifest = CheckpointStores(roots(), max_memory_state_bytes=0).manifest(point.path)
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{point.path} cannot be read: {error}") from error
    return shelf_life(
        manifest,
        manifest.pipeline,
        run.parameters if run else {},
        is_committed=point.committed_at is not None,
        code=loaded_code(manifest.code),
    )


def may_be_read(path: str) -> bool:
    """True if the manifest is there, as far as the page can tell.

    The page cannot wait for an object store, and a disk that does not answer has lost nothing.
    """
    scheme = scheme_of(path)
    if scheme:
        return scheme in OBJECT_SCHEMES
    try:
        return stat.S_ISREG((Path(path) / MANIFEST).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def read_manifest(path: str) -> Manifest:
    """Raises Rejected if there is no recovery point at `path`, or its manifest was altered."""
    if scheme_of(path):
        return _manifest_of_objects(path)
    try:
        return unseal(str(Path(path) / MANIFEST), _content(path))
    except CorruptSnapshot as error:
        raise Rejected(f"{error} Choose another point.") from error


def manifest_bytes(path: str) -> bytes:
    """The manifest with its digest, as stored. Raises Rejected if it cannot be read."""
    if not scheme_of(path):
        return _content(path)
    return seal(_manifest_of_objects(path))


def _manifest_of_objects(path: str) -> Manifest:
    # The stores load Arrow, which takes longer than a page should; most points are files.
    from pipelines.storage.stores import CheckpointStores

    try:
        return CheckpointStores([path], max_memory_state_bytes=0).manifest(path)
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{path} cannot be used: {error}") from error


def _content(path: str) -> bytes:
    try:
        return (Path(path) / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Rejected(
            f"There is no recovery point at {path}: its {MANIFEST} is missing; choose another"
            " point."
        ) from error
    except OSError as error:
        raise Rejected(
            f"{Path(path) / MANIFEST} cannot be read at the moment ({error.strerror}); try"
            " again when the storage answers."
        ) from error


COMPLETE = (CheckpointStatus.COMPLETED, CheckpointStatus.DISCARDED)


def savepoints(pipeline: str, page: int = 1, per_page: int = 25) -> SavepointPage:
    """Returns a page of the savepoints of all runs of the pipeline.

    A page number beyond the last gives the last page.
    """
    rows = _savepoints().filter(run__pipeline__name=pipeline).order_by("-completed_at", "-pk")
    shown = Paginator(rows, per_page).get_page(page)
    kept = rows.filter(status=CheckpointStatus.COMPLETED).aggregate(total=Sum("state_bytes"))
    return SavepointPage(
        rows=_described(list(shown)),
        page=shown.number,
        page_count=shown.paginator.num_pages,
        total_count=shown.paginator.count,
        kept_bytes=kept["total"] or 0,
    )


def savepoint(key: str) -> Savepoint | None:
    """Returns the savepoint with that `Savepoint.key`, or None if there is none."""
    run_id, _, number = key.rpartition("-")
    if not number.isdecimal() or len(number) > 18:
        return None
    found = _described(_savepoints().filter(run__run_id=run_id, checkpoint_id=int(number))[:1])
    return found[0] if found else None


def savepoint_at(pipeline: str, path: str) -> Savepoint | None:
    """Returns None if the pipeline has no savepoint there."""
    found = _described(_savepoints().filter(run__pipeline__name=pipeline, path=path)[:1])
    return found[0] if found else None


def others_than(point: Savepoint) -> OtherPoints:
    kept = Checkpoint.objects.filter(
        run__pipeline__name=point.pipeline, status=CheckpointStatus.COMPLETED, path__isnull=False
    ).exclude(path=point.path)
    earlier = kept.filter(completed_at__lt=point.completed_at).select_related("run")
    older = earlier.order_by("-completed_at").first()
    # Records are counted along a lineage, so across runs the difference may mean nothing.
    is_comparable = older is not None and older.run.run_id == point.run_id
    read = (older.source_records or 0) if older else 0
    return OtherPoints(
        count=kept.count(),
        newest_older_id=older.checkpoint_id if older else None,
        newest_older_kind=older.kind.lower() if older else "",
        records_between=point.source_records - read if is_comparable else None,
    )


def _savepoints() -> QuerySet[Checkpoint]:
    kinds = Checkpoint.objects.filter(kind=CheckpointKind.SAVEPOINT.value, status__in=COMPLETE)
    complete = kinds.filter(path__isnull=False, checkpoint_id__isnull=False)
    return complete.select_related("run__pipeline")


def _described(rows: Iterable[Checkpoint]) -> list[Savepoint]:
    rows = list(rows)
    paths = [row.path or "" for row in rows]
    wanted = [row.request_id for row in rows if row.request_id]
    requests = {each.request_id: each for each in Request.objects.filter(request_id__in=wanted)}
    labels = labels_of(paths, wanted)
    readings = {each.path: each for each in PointInspection.objects.filter(path__in=paths)}
    restored: dict[str, list[RestoredRun]] = {}
    for run in (
        Run.objects.filter(restored_from__in=paths).select_related("pipeline").order_by("pk")
    ):
        restored.setdefault(run.restored_from or "", []).append(_restored(run))
    return [
        _savepoint(
            row,
            requests.get(row.request_id or ""),
            labels.get(row.path or "", labels.get(row.request_id or "")),
            readings.get(row.path or ""),
            restored.get(row.path or "", []),
        )
        for row in rows
    ]


def labels_of(paths: list[str], request_ids: list[str]) -> dict[str, PointLabel]:
    """Returns the labels by path and by request id."""
    by_path = {row.path or "": row for row in PointLabel.objects.filter(path__in=paths)}
    by_request = PointLabel.objects.filter(request_id__in=request_ids)
    return {row.request_id or "": row for row in by_request} | by_path


def _restored(run: Run) -> RestoredRun:
    return RestoredRun(
        run_id=run.run_id,
        pipeline=run.pipeline.name,
        number=run.number,
        created_at=run.created_at,
        is_claimed=run.claim_mode == ClaimMode.CLAIM.value,
    )


def _savepoint(
    row: Checkpoint,
    request: Request | None,
    label: PointLabel | None,
    inspection: PointInspection | None,
    restored_by: list[RestoredRun],
) -> Savepoint:
    path = row.path or ""
    command = request.command if request else None
    reading = reading_of(inspection) if inspection else None
    return Savepoint(
        key=f"{row.run.run_id}-{row.checkpoint_id}",
        pipeline=row.run.pipeline.name,
        run_id=row.run.run_id,
        run_number=row.run.number,
        checkpoint_id=row.checkpoint_id or 0,
        label=label.label if label else "",
        labelled_by=label.labelled_by if label else "",
        labelled_at=label.labelled_at if label else None,
        savepoint_format=savepoint_format(command),
        path=path,
        completed_at=row.completed_at or row.trigger_at,
        committed_at=row.committed_at,
        state_bytes=row.state_bytes or 0,
        source_records=row.source_records or 0,
        parallelism=row.run.parallelism,
        max_parallelism=row.run.max_parallelism,
        watermark_at=watermark_moment(row.watermark_ms),
        request_label=command.action if command else "",
        requester=request.requester if request else "",
        reason=request.reason if request else "",
        is_disposed=row.status == CheckpointStatus.DISCARDED,
        is_present=may_be_read(path),
        verified_at=_verified_at(row, reading),
        problem=(reading.problem if reading else "") or row.problem,
        reading=reading,
        restored_by=restored_by,
    )


def savepoint_format(command: AnyCommand | None) -> SavepointFormat:
    """`command` is None if its request is no longer known."""
    return command.format if isinstance(command, SavepointCommand) else SavepointFormat.CANONICAL


def reading_of(row: PointInspection) -> Reading:
    return msgspec.convert(row, Reading, from_attributes=True)


def _verified_at(row: Checkpoint, reading: Reading | None) -> datetime | None:
    """Returns when the driver, or a worker since then, last verified all files."""
    is_whole = reading is not None and reading.ended_at is not None and not reading.problem
    found = [row.verified_at, reading.ended_at if reading and is_whole else None]
    return max((each for each in found if each is not None), default=None)
