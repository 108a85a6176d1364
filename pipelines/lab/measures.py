"""Measures one run of the lab: decides whether it can be compared, and counts its output.

Works on the facts that the run leaves, the rows of its sink and the reads that its source noted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.domain.events import EngineEvent, Envelope, RunEnded
from pipelines.domain.status import JobStatus
from pipelines.lab.view_input import Numbers
from pipelines.lab.view_log import Rows

E = TypeVar("E", bound=EngineEvent)


class TrialFailed(Exception):
    """The run did not finish, or not all faults happened: there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`reads` is what `view_input.reads` returns."""

    envelopes: list[Envelope]
    rows: Rows
    reads: list[tuple[int, Numbers]]
    kills: list[tuple[int, int]]  # wall clock in milliseconds, and the view
    began_ms: int

    def of(self, kind: type[E]) -> list[E]:
        return [each.event for each in self.envelopes if isinstance(each.event, kind)]


def check_comparable(facts: Facts, status: JobStatus, faults: int) -> None:
    """Raises TrialFailed with the reason unless the run has finished with all its `faults`."""
    if status is not JobStatus.FINISHED:
        reasons = [ended.reason for ended in facts.of(RunEnded) if ended.reason]
        why = reasons[-1] if reasons else "its journal does not say why."
        raise TrialFailed(f"The run is {status}: {why}")
    if len(facts.kills) != faults:
        raise TrialFailed(f"Of {faults} faults only {len(facts.kills)} came about in the run.")


PERCENTILES = (50, 99)


@dataclass(frozen=True, slots=True)
class Delivered:
    """`counted_short`, `counted_over`: by how many views the applications' totals were off.

    A total is that of the application's newest row, as in a table that is overwritten.
    """

    lost: int
    doubled: int
    counted_short: int
    counted_over: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from when a view happened until a reader could first see it."""

    p50_ms: float
    p99_ms: float


def delivered(rows: Rows, apps: Numbers) -> Delivered:
    """`apps`: the application of each view of the input; `rows` in the order of writing."""
    times = np.bincount(rows["view"], minlength=len(apps))
    off = _totals(rows) - np.bincount(apps, minlength=_APPS_MAX)
    return Delivered(
        lost=int((times == 0).sum()),
        doubled=int(np.maximum(times - 1, 0).sum()),
        counted_short=int(-off[off < 0].sum()),
        counted_over=int(off[off > 0].sum()),
    )


def latency(rows: Rows) -> Latency | None:
    """None: the run wrote no rows."""
    if not len(rows):
        return None
    order = np.argsort(rows["visible_ms"], kind="stable")
    _, first = np.unique(rows["view"][order], return_index=True)
    waited_ms = (rows["visible_ms"] - rows["happened_ms"])[order][first]
    p50, p99 = np.percentile(waited_ms, PERCENTILES)
    return Latency(float(p50), float(p99))


def views_per_s(rows: Rows, began_ms: int) -> float:
    """Distinct views, from the first one asked for to the last one visible."""
    if not len(rows):
        return 0.0
    elapsed_ms = max(1, int(rows["visible_ms"].max()) - began_ms)
    return len(np.unique(rows["view"])) * 1000 / elapsed_ms


def read_again(reads: Iterable[tuple[int, Numbers]]) -> int:
    """Views that the source gave out more than once; `reads` is what `view_input.reads` returns."""
    return sum(_covered_again(ranges) for _, ranges in reads)


_APPS_MAX = 1_024


def _totals(rows: Rows) -> Numbers:
    """By application; 0 for one without rows."""
    totals = np.zeros(_APPS_MAX, np.int64)
    totals[rows["app"]] = rows["views"]  # of equal indices the last one stays
    return totals


def _covered_again(ranges: npt.NDArray[np.int64]) -> int:
    total, distinct, reached = 0, 0, 0
    for begin, end in sorted(ranges.tolist()):
        total += end - begin
        distinct += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total - distinct
