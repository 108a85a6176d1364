"""Two checkpoints side by side: which stretch of which subtask made one take longer. Pure."""

from dataclasses import dataclass

from ftdash.checkpoints.alignment import stretches_of, stretches_to_last
from ftdash.checkpoints.answers import SubtaskTimeline
from ftdash.checkpoints.queries.detail import CheckpointDetail, checkpoint_detail


@dataclass(frozen=True, slots=True)
class Growth:
    """`phase` as in `Slowest`, with its time in the quicker and in the slower checkpoint."""

    vertex: str
    subtask: int
    phase: str
    quick_ms: float
    slow_ms: float

    @property
    def more_ms(self) -> float:
        return self.slow_ms - self.quick_ms


@dataclass(frozen=True, slots=True)
class ComparedCheckpoints:
    """`growth`: why the slower one took longer; None: for no reason, or it is not known."""

    shown: CheckpointDetail
    other: CheckpointDetail
    growth: Growth | None


def compared(run_id: str, checkpoint_id: int, other_id: int) -> ComparedCheckpoints | None:
    """None if the run lacks one of them."""
    shown, other = checkpoint_detail(run_id, checkpoint_id), checkpoint_detail(run_id, other_id)
    if shown is None or other is None:
        return None
    quick, slow = sorted((shown, other), key=lambda each: each.found.took_ms or 0.0)
    return ComparedCheckpoints(
        shown, other, longest_growth(slow.timeline.subtasks, quick.timeline.subtasks)
    )


def longest_growth(slow: list[SubtaskTimeline], quick: list[SubtaskTimeline]) -> Growth | None:
    """The stretch before the slower one's last acknowledgement that grew most.

    None: none grew, or a side's subtasks are not known.
    """
    by_name = {(each.vertex, each.subtask): each for each in quick}
    grown = []
    for stretch in stretches_to_last(slow):
        same = by_name.get((stretch.subtask.vertex, stretch.subtask.subtask))
        if same is not None:
            before_ms = stretches_of(same, quick).get(stretch.phase, 0.0)
            subtask = stretch.subtask
            grown.append(
                Growth(subtask.vertex, subtask.subtask, stretch.phase, before_ms, stretch.ms)
            )
    most = max(grown, key=lambda growth: growth.more_ms, default=None)
    return most if most is not None and most.more_ms > 0 else None
