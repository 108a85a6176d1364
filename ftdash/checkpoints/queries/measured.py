"""A checkpoint with everything known of it: its row, and its subtasks' reports so far.

Source: Flink, `AbstractCheckpointStats` and its three kinds.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Count, Max, Q, Sum

from ftdash.checkpoints.answers import CheckpointRow
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.checkpoints.queries.checkpoints import row_of
from ftdash.jobs.models import Request, RequestKind
from pipelines.domain.status import CheckpointKind, SavepointFormat


@dataclass(frozen=True, slots=True)
class MeasuredCheckpoint:
    row: CheckpointRow
    last_acknowledged_ms: float | None  # after the trigger; None: none has, or it is not kept
    acknowledged_state_bytes: int
    acknowledged_uploaded_bytes: int
    acknowledged_persisted_bytes: int
    is_unaligned: bool  # at least one subtask did not wait for its inputs
    savepoint_format: SavepointFormat | None  # None: no savepoint
    ends_run: bool  # a savepoint to stop with

    @property
    def last_known_ms(self) -> float | None:
        """Its newest acknowledgement, or its end if the subtasks' parts are no longer kept."""
        known = self.last_acknowledged_ms
        return self.row.end_to_end_ms if known is None else known

    @property
    def last_acknowledged_at(self) -> datetime | None:
        after_ms = self.last_known_ms
        return None if after_ms is None else self.row.trigger_at + timedelta(milliseconds=after_ms)

    @property
    def took_ms(self) -> float | None:
        """To its end, or to the newest acknowledgement. None: there was neither."""
        row = self.row
        if row.status is CheckpointStatus.FAILED and row.failed_at is not None:
            return max(0.0, (row.failed_at - row.trigger_at) / timedelta(milliseconds=1))
        return self.last_known_ms if row.end_to_end_ms is None else row.end_to_end_ms

    @property
    def state_bytes(self) -> int:
        return _or(self.row.state_bytes, self.acknowledged_state_bytes)

    @property
    def uploaded_bytes(self) -> int:
        return _or(self.row.uploaded_bytes, self.acknowledged_uploaded_bytes)

    @property
    def persisted_bytes(self) -> int:
        return _or(self.row.persisted_bytes, self.acknowledged_persisted_bytes)


class _Reported(NamedTuple):
    """The reports of all subtasks of one checkpoint, together."""

    last_ms: float | None
    state_bytes: int
    uploaded_bytes: int
    persisted_bytes: int
    unaligned_count: int


_NOTHING = _Reported(None, 0, 0, 0, 0)


def measured(rows: list[Checkpoint]) -> dict[int, MeasuredCheckpoint]:
    """By primary key; the rows come with their runs."""
    reported = _reported(rows)
    wanted = [row.request_id for row in rows if row.request_id]
    asked = {each.request_id: each for each in Request.objects.filter(request_id__in=wanted)}
    return {
        row.pk: _one(row, reported.get(row.pk, _NOTHING), asked.get(row.request_id or ""))
        for row in rows
    }


def _reported(rows: list[Checkpoint]) -> dict[int, _Reported]:
    found = SubtaskPhase.objects.filter(checkpoint__in=rows).order_by().values("checkpoint")
    sums = found.annotate(
        last_ms=Max("acknowledged_ms"),
        state=Sum("state_bytes"),
        uploaded=Sum("uploaded_bytes"),
        persisted=Sum("persisted_bytes"),
        unaligned=Count("pk", filter=Q(is_unaligned=True)),
    )
    columns = ("checkpoint", "last_ms", "state", "uploaded", "persisted", "unaligned")
    return {key: _Reported(*values) for key, *values in sums.values_list(*columns)}


def _one(row: Checkpoint, reported: _Reported, asked: Request | None) -> MeasuredCheckpoint:
    savepoint_format = None
    if row.kind == CheckpointKind.SAVEPOINT.value:
        given = asked.parameters.get("type") if asked else None
        savepoint_format = SavepointFormat(given or SavepointFormat.CANONICAL)
    return MeasuredCheckpoint(
        row=row_of(row),
        last_acknowledged_ms=reported.last_ms,
        acknowledged_state_bytes=reported.state_bytes,
        acknowledged_uploaded_bytes=reported.uploaded_bytes,
        acknowledged_persisted_bytes=reported.persisted_bytes,
        is_unaligned=reported.unaligned_count > 0,
        savepoint_format=savepoint_format,
        ends_run=asked is not None and asked.kind == RequestKind.STOP_WITH_SAVEPOINT,
    )


def _or(known: int | None, so_far: int) -> int:
    return so_far if known is None else known
