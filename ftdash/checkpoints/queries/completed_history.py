"""The figures of every completed checkpoint of a run, in columns, oldest first.

They show how a run's checkpoints changed over time. A completed checkpoint does not change any
more, so this process keeps what it has read, and reads only newer ones. If retention has deleted
rows, it reads all of them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from django.db.models import Min, QuerySet
from numpy.typing import NDArray

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.times import epoch_ms

COMPLETED_MAX = 10_000
"""Only this many of a run's completed checkpoints count, the newest."""

RUNS_KEPT = 32

FIGURES = (
    "end_to_end_ms",
    "alignment_ms",
    "state_bytes",
    "uploaded_bytes",
    "buffered_bytes",
    "persisted_bytes",
)

Whole = NDArray[np.int64]
Measured = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedHistory:
    """Columns of equal length; NaN: the checkpoint did not report it."""

    checkpoint_ids: Whole
    trigger_ms: Whole  # since the epoch
    end_to_end_ms: Measured
    alignment_ms: Measured  # of the subtask that aligned longest
    state_bytes: Measured
    uploaded_bytes: Measured
    buffered_bytes: Measured
    persisted_bytes: Measured

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> "CompletedHistory":
        """Makes columns from rows of id, trigger time and FIGURES; None means not reported."""
        ids, triggers, *figures = zip(*rows, strict=True) if rows else ((),) * (2 + len(FIGURES))
        return cls(
            checkpoint_ids=np.array(ids, np.int64),
            trigger_ms=np.array([epoch_ms(at) for at in triggers], np.int64),
            **{
                name: np.array(column, np.float64)  # None becomes NaN
                for name, column in zip(FIGURES, figures, strict=True)
            },
        )

    def __len__(self) -> int:
        return len(self.checkpoint_ids)

    def then(self, later: "CompletedHistory") -> "CompletedHistory":
        mine, theirs = self._columns(), later._columns()
        return CompletedHistory(**{n: np.concatenate((mine[n], theirs[n])) for n in mine})

    def part(self, begin: int, end: int | None = None) -> "CompletedHistory":
        return CompletedHistory(**{n: each[begin:end] for n, each in self._columns().items()})

    def _columns(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in ("checkpoint_ids", "trigger_ms", *FIGURES)}


def completed_history(run_id: str) -> CompletedHistory:
    return _kept(run_id).read()


def known_of(column: Measured) -> Measured:
    return column[~np.isnan(column)]


def forget() -> None:
    """Forgets everything read so far, as in a new process."""
    _kept.cache_clear()


class _Kept:
    """The part of one run that was already read. Its rows were written in `sequence` order."""

    def __init__(self, run_id: str) -> None:
        self._rows = Checkpoint.objects.filter(run__run_id=run_id)
        self._lock = Lock()  # several threads make the pages of one process
        self._settled = CompletedHistory.of([])
        self._settled_until = -1  # no row up to here is in progress any more
        self._left_out = 0  # how many are older than the newest COMPLETED_MAX

    def read(self) -> CompletedHistory:
        with self._lock:
            until = self._nothing_open_until()
            found = self._grown(until)
            if not self._is_whole(found):
                self._settled, self._settled_until = CompletedHistory.of([]), -1
                found = self._grown(until)
                self._left_out = max(0, self._complete().count() - len(found))
            return found.part(max(0, len(found) - COMPLETED_MAX))

    def _is_whole(self, found: CompletedHistory) -> bool:
        """True if no row was deleted after it was read, and none was skipped."""
        is_full = not self._left_out or len(found) >= COMPLETED_MAX
        return is_full and self._left_out + len(found) == self._complete().count()

    def _grown(self, until: int) -> CompletedHistory:
        """Returns all completed checkpoints, and keeps those up to `until` for the next time."""
        later = self._complete().filter(sequence__gt=self._settled_until)
        fields = later.values_list("sequence", "checkpoint_id", "trigger_at", *FIGURES)
        rows = list(fields.order_by("-sequence")[:COMPLETED_MAX])[::-1]
        settling = sum(row[0] <= until for row in rows)
        newer = CompletedHistory.of([row[1:] for row in rows])
        self._keep(self._settled.then(newer.part(0, settling)), until)
        return self._settled.then(newer.part(settling))

    def _keep(self, settled: CompletedHistory, until: int) -> None:
        too_many = max(0, len(settled) - COMPLETED_MAX)
        self._settled, self._settled_until = settled.part(too_many), until
        self._left_out += too_many

    def _complete(self) -> QuerySet[Checkpoint]:
        return self._rows.filter(status__in=COMPLETE).order_by()

    def _nothing_open_until(self) -> int:
        """Returns a place in the sequence that all open and future checkpoints come after."""
        newest = self._rows.order_by("-sequence").values_list("sequence", flat=True).first()
        is_open = self._rows.filter(status=CheckpointStatus.IN_PROGRESS)
        oldest_open = is_open.order_by().aggregate(oldest=Min("sequence"))["oldest"]
        return (-1 if newest is None else newest) if oldest_open is None else oldest_open - 1


_kept = lru_cache(maxsize=RUNS_KEPT)(_Kept)


FAILED_MAX = 1_000
"""How many failed checkpoints are shown, the newest."""


class FailedPoint(NamedTuple):
    checkpoint_id: int
    at: datetime  # when it was triggered
    failed_after_ms: float


@dataclass(frozen=True, slots=True)
class Trend:
    completed: CompletedHistory
    failed: list[FailedPoint]


def trend(run_id: str) -> Trend:
    rows = Checkpoint.objects.filter(run__run_id=run_id, status=CheckpointStatus.FAILED)
    failed = rows.filter(checkpoint_id__isnull=False).order_by("-sequence")[:FAILED_MAX]
    return Trend(
        completed=completed_history(run_id),
        failed=[
            FailedPoint(number or 0, at, ((failed_at or at) - at) / timedelta(milliseconds=1))
            for number, at, failed_at in failed.values_list(
                "checkpoint_id", "trigger_at", "failed_at"
            )
        ][::-1],
    )
