"""The report of a lab: measures the runs of each mode, and judges them by the mode's promise.

A run's measurements come from the facts that it leaves, the rows of its sink, and the reads that
its source noted. This module also decides whether a run can be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from pipelines.domain.events import EngineEvent, Envelope, RunEnded
from pipelines.domain.guarantees import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from pipelines.domain.status import JobStatus
from pipelines.lab.options import LabOptions
from pipelines.lab.page_views import Numbers, Rows

LOSES_NOTHING = (EXACTLY_ONCE, AT_LEAST_ONCE)
DOUBLES_NOTHING = (EXACTLY_ONCE, AT_MOST_ONCE)


class FaultRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run at the rate of the input, with slots killed at the places of the schedule."""

    lost: int
    doubled: int
    counted_short: int  # views that are missing from the totals by application at the end
    counted_over: int  # views that these totals count too many
    killed_at: list[int]  # the newest view that the slot was parsing
    recovery_ms: list[int]  # from each kill until all subtasks ran again
    read_again: int  # views that the source gave out more than once
    latency_p50_ms: float | None  # from when a view happened until it could be seen
    latency_p99_ms: float | None


class CostRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the same input without faults, at full speed.

    The sending subtasks count `barriers`, `acker_ids` and `acker_messages`; the fields
    `..._expected` come from the formulas.
    """

    lost: int
    doubled: int
    views_per_s: float
    checkpoints: int
    barriers: int
    barriers_expected: int
    acknowledgements: int  # from subtasks to the driver, when their part of a checkpoint is durable
    acker_ids: int  # Storm's inits and acks
    acker_ids_expected: int
    acker_messages: int  # messages that carried these ids; one covers a batch
    control_per_record: float  # barriers and ids


class ModeReport(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    promise: str
    reason: str
    faulted: FaultRun
    cost: CostRun | None
    broken: list[str]  # broken promises; empty if the mode kept them all


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the slots of the measurement."""

    slots: str
    machine: str
    cores: int
    python: str


class LabReport(msgspec.Struct, frozen=True, kw_only=True):
    began_at: str  # ISO 8601, UTC
    took_s: float
    host: Host
    options: LabOptions
    steps: int
    kill_places: list[int]
    modes: list[ModeReport]

    @property
    def is_kept(self) -> bool:
        return not any(mode.broken for mode in self.modes)


def broken_promises(promise: str, faulted: FaultRun, cost: CostRun | None) -> list[str]:
    """Returns one sentence per broken promise; a mode may do better than it promises."""
    broken = []
    if promise in LOSES_NOTHING and faulted.lost:
        broken.append(f"It promises to lose nothing, and {faulted.lost} views are lost.")
    if promise in DOUBLES_NOTHING and faulted.doubled:
        broken.append(f"It promises to double nothing, and {faulted.doubled} views came again.")
    if promise == EXACTLY_ONCE and (faulted.counted_short or faulted.counted_over):
        broken.append(
            f"Its totals are {faulted.counted_short} views short and {faulted.counted_over} over."
        )
    if cost is not None and (cost.lost or cost.doubled):
        broken.append(
            f"Without any fault {cost.lost} views are lost and {cost.doubled} came again."
        )
    return broken


def comparison(report: LabReport) -> str:
    """Compares the cost of following every record with the cost of barriers, in counts.

    Returns an empty text if one of the two was not measured.
    """
    acked = _cost_of(report, "acked")
    exact = _cost_of(report, "exactly-once")
    if acked is None or exact is None:
        return ""
    records, steps = report.options.records, report.steps
    each = exact.barriers / max(1, exact.checkpoints)
    return (
        f"Following every record through {steps} steps took {acked.acker_ids / records:.3f} acks a"
        f" record (expected: 1 + {steps}); a checkpoint took {each:g} barriers (expected:"
        f" {steps} x {report.options.parallelism}² channels), which is"
        f" {exact.barriers / records:.6f} a record at one checkpoint every"
        f" {report.options.interval_ms} ms."
    )


def _cost_of(report: LabReport, mode: str) -> CostRun | None:
    return next((each.cost for each in report.modes if each.mode == mode), None)


_HEADINGS = (
    "mode", "lost", "doubled", "short", "over", "read again", "recovery ms", "p50 ms", "p99 ms",
    "views/s", "barriers", "acks", "control/record",
)  # fmt: skip


def sentences(report: LabReport) -> list[str]:
    table = [_HEADINGS, *(_line(mode) for mode in report.modes)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADINGS))]
    lines = [_padded(line, widths) for line in table]
    promises = [f"{mode.mode} promises {mode.promise}: {_verdict(mode)}" for mode in report.modes]
    return [*lines, "", *promises, "", *filter(None, [comparison(report)])]


def _line(mode: ModeReport) -> tuple[str, ...]:
    run, cost = mode.faulted, mode.cost
    return (
        mode.mode,
        *(f"{n:,}" for n in (run.lost, run.doubled, run.counted_short, run.counted_over)),
        f"{run.read_again:,}",
        "/".join(map(str, run.recovery_ms)) or "-",
        *(_milliseconds(each) for each in (run.latency_p50_ms, run.latency_p99_ms)),
        *(
            ("-",) * 4
            if cost is None
            else (
                f"{cost.views_per_s:,.0f}",
                f"{cost.barriers:,}",
                f"{cost.acker_ids:,}",
                f"{cost.control_per_record:.6f}",
            )
        ),
    )


def _verdict(mode: ModeReport) -> str:
    return " ".join(mode.broken) or "kept."


def _milliseconds(duration: float | None) -> str:
    return "-" if duration is None else f"{duration:,.0f}"


def _padded(line: Iterable[str], widths: list[int]) -> str:
    first, *rest = zip(line, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)])


E = TypeVar("E", bound=EngineEvent)


class TrialFailed(Exception):
    """The run did not finish, or some faults did not happen: there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a run leaves; `reads` comes from `page_views.reads`."""

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
    """`counted_short` and `counted_over` are the views by which applications' totals are off.

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
    """`apps` is the application of each view of the input; `rows` are in the order of writing."""
    times = np.bincount(rows["view"], minlength=len(apps))
    off = _totals(rows) - np.bincount(apps, minlength=_APPS_MAX)
    return Delivered(
        lost=int((times == 0).sum()),
        doubled=int(np.maximum(times - 1, 0).sum()),
        counted_short=int(-off[off < 0].sum()),
        counted_over=int(off[off > 0].sum()),
    )


def latency(rows: Rows) -> Latency | None:
    """Returns None if the run wrote no rows."""
    if not len(rows):
        return None
    order = np.argsort(rows["visible_ms"], kind="stable")
    _, first = np.unique(rows["view"][order], return_index=True)
    waited_ms = (rows["visible_ms"] - rows["happened_ms"])[order][first]
    p50, p99 = np.percentile(waited_ms, PERCENTILES)
    return Latency(float(p50), float(p99))


def views_per_s(rows: Rows, began_ms: int) -> float:
    """Counts distinct views, from the first one requested until the last one is visible."""
    if not len(rows):
        return 0.0
    elapsed_ms = max(1, int(rows["visible_ms"].max()) - began_ms)
    return len(np.unique(rows["view"])) * 1000 / elapsed_ms


def read_again(reads: Iterable[tuple[int, Numbers]]) -> int:
    """Counts views that the source emitted more than once; `reads` is from `page_views.reads`."""
    return sum(_covered_again(ranges) for _, ranges in reads)


_APPS_MAX = 1_024


def _totals(rows: Rows) -> Numbers:
    """Returns the totals by application; an application without rows has 0."""
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
