"""How much committed output came after a recovery point: what a restore of it sets aside.

Counted from the ledgers of the runs in between; unknown if their rows no longer reach back to the
point. Reads rows only.
"""

from ftdash.checkpoints.ledger_fold import ROWS_KEPT
from ftdash.checkpoints.models import Checkpoint
from ftdash.checkpoints.queries.guarantee import LedgerLine, ledger
from ftdash.jobs.models import Pipeline
from ftdash.points.queries.recovery_points import newest_line


def rows_after(path: str, pipeline: Pipeline) -> int | None:
    """Rows of all sinks together; None: not known, or the newest run does not descend from it."""
    point = Checkpoint.objects.filter(path=path).select_related("run").first()
    line = newest_line(pipeline)
    if point is None or point.checkpoint_id is None or point.run.run_id not in line:
        return None
    up_to = line[point.run.run_id]
    if up_to is not None and up_to < point.checkpoint_id:
        return None  # a restore has since gone back to another point of its run
    total = 0
    for run_id, last_id in line.items():  # newest first; their checkpoint ids continue
        lines = _lines_after(run_id, point.checkpoint_id)
        if lines is None:
            return None
        kept = [each for each in lines if last_id is None or each.checkpoint_id <= last_id]
        total += sum(_rows(each) for each in kept)
        if run_id == point.run.run_id:
            break
    return total


def _lines_after(run_id: str, checkpoint_id: int) -> list[LedgerLine] | None:
    """None: some of them were deleted, or there is no ledger."""
    lines = ledger(run_id, ROWS_KEPT).lines
    after = [line for line in lines if line.checkpoint_id > checkpoint_id]
    is_whole = bool(lines) and (len(lines) < ROWS_KEPT or len(after) < len(lines))
    return after if is_whole else None


def _rows(line: LedgerLine) -> int:
    if line.is_void or not line.is_committed:
        return 0
    return sum(output.rows for output in line.outputs)
