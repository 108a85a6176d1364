"""The lines of the tables about one checkpoint: its operators, and their subtasks. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ftdash.checkpoints.answers import SubtaskTimeline
from ftdash.checkpoints.parts import SubtaskSpread, VertexPart
from ftdash.checkpoints.queries.detail import CheckpointDetail
from ftdash.checkpoints.queries.measured import MeasuredCheckpoint
from ftdash.ui.checkpoint.subtask_order import COLUMNS, SubtaskOrder
from pipelines.domain.status import CheckpointKind


@dataclass(frozen=True, slots=True)
class SubtaskRow:
    index: int
    at: datetime | None  # None: it has not acknowledged
    part: SubtaskTimeline | None


@dataclass(frozen=True, slots=True)
class SpreadRow:
    label: str
    cells: list[str]  # in the order of `COLUMNS`


@dataclass(frozen=True, slots=True)
class OperatorRow:
    part: VertexPart
    at: datetime | None  # of its newest acknowledgement
    subtasks: list[SubtaskRow]
    spread: list[SpreadRow]  # empty before the first acknowledgement


def operator_rows(detail: CheckpointDetail, order: SubtaskOrder) -> list[OperatorRow]:
    trigger_at = detail.found.row.trigger_at
    return [
        OperatorRow(
            part=part,
            at=_after(trigger_at, part.last_acknowledged_ms),
            subtasks=[
                _subtask_row(index, part.subtasks.get(index), trigger_at)
                for index in order.indices(part.subtasks, part.subtask_count)
            ],
            spread=spread_rows(part.spread) if part.subtasks else [],
        )
        for part in detail.parts
    ]


def _subtask_row(index: int, part: SubtaskTimeline | None, trigger_at: datetime) -> SubtaskRow:
    return SubtaskRow(index, _after(trigger_at, part.acknowledged_ms if part else None), part)


def _after(trigger_at: datetime, ms: float | None) -> datetime | None:
    return None if ms is None else trigger_at + timedelta(milliseconds=ms)


def spread_rows(spread: SubtaskSpread) -> list[SpreadRow]:
    found = [(column.spread(spread), column.write) for column in COLUMNS]
    return [
        SpreadRow("Minimum", [write(each.minimum) for each, write in found]),
        SpreadRow("Average", [write(each.average) for each, write in found]),
        SpreadRow("Maximum", [write(each.maximum) for each, write in found]),
    ]


def type_words(found: MeasuredCheckpoint) -> str:
    """As on Flink's page, which has no name for the last checkpoint of a run."""
    if found.row.kind == CheckpointKind.SAVEPOINT:
        return "savepoint to stop with" if found.ends_run else "savepoint"
    aligned = "unaligned" if found.is_unaligned else "aligned"
    is_final = found.row.kind == CheckpointKind.FINAL
    return f"{aligned} checkpoint{', the final one' if is_final else ''}"
