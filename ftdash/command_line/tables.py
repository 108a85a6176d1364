"""Answers of `manage.py pipeline` as tables for people; scripts read JSON."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import IO, Any, cast

from django.core.management.base import OutputWrapper
from django.utils import timezone
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ftdash.checkpoints.answers import RecoveryPoint, Savepoint
from ftdash.formats import age, count, rate, size, utc
from ftdash.jobs.answers import RequestView
from ftdash.runs.fleet_answers import PipelineSummary
from pipelines.points.verdict import Finding

Columns = Mapping[str, Callable[[Any], str]]

WIDTH_OF_FILES = 240
"""The width of lines in a file or for another program, where no terminal cuts them."""


def ago(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    return f"{age((timezone.now() - moment).total_seconds() * 1000)} ago"


def _pipeline_state(each: PipelineSummary) -> str:
    last = each.last_reported_state
    return each.state if last in (None, each.state) else f"{each.state} (was {last})"


PIPELINES: Columns = {
    "pipeline": lambda each: each.name,
    "state": _pipeline_state,
    "run": lambda each: count(each.run_number),
    "records": lambda each: rate(each.records_per_s),
    "restarts": lambda each: count(each.restart_count),
    "checkpoint": lambda each: count(each.last_checkpoint_id),
    "completed": lambda each: ago(each.last_completed_at),
    "committed": lambda each: ago(each.last_committed_at),
    "guarantee": lambda each: each.guarantee,
    "needs attention": lambda each: each.attention or each.state_reason,
}
REQUESTS: Columns = {
    "request": lambda each: each.request_id,
    "action": lambda each: each.label,
    "state": lambda each: each.phase_label,
    "by": lambda each: each.requester,
    "asked": lambda each: ago(each.created_at),
    "what came of it": lambda each: each.message or each.path or "",
}
POINTS: Columns = {
    "point": lambda each: f"{each.kind.lower()} {each.checkpoint_id}",
    "run": lambda each: count(each.run_number),
    "completed": lambda each: utc(each.completed_at),
    "state": lambda each: size(each.state_bytes),
    "read": lambda each: f"{count(each.source_records)} records",
    "parallelism": lambda each: count(each.parallelism),
    "label": lambda each: each.label,
    "problem": lambda each: _problem(each),
    "path": lambda each: each.path,
}
SAVEPOINTS: Columns = {
    "savepoint": lambda each: count(each.checkpoint_id),
    "run": lambda each: count(each.run_number),
    "completed": lambda each: utc(each.completed_at),
    "format": lambda each: each.savepoint_format.value.lower(),
    "state": lambda each: size(each.state_bytes),
    "by": lambda each: each.requester,
    "label": lambda each: each.label,
    "problem": lambda each: "disposed of" if each.is_disposed else _problem(each),
    "path": lambda each: each.path,
}
FINDINGS: Columns = {
    "check": lambda each: each.check.value,
    "outcome": lambda each: each.outcome.value,
    "finding": lambda each: each.text,
}

COLUMNS: dict[type, Columns] = {
    PipelineSummary: PIPELINES,
    RequestView: REQUESTS,
    RecoveryPoint: POINTS,
    Savepoint: SAVEPOINTS,
    Finding: FINDINGS,
}


def _problem(point: RecoveryPoint | Savepoint) -> str:
    return point.problem if point.is_present else "its files are gone"


def write_table(out: OutputWrapper, rows: Iterable[object], title: str, nothing: str) -> None:
    """Writes rows of one type in `COLUMNS` as a table, without columns in which no row has a value.

    `nothing` is the sentence to write if there are no rows.
    """
    listed = list(rows)
    width = shutil.get_terminal_size().columns if out.isatty() else WIDTH_OF_FILES
    console = Console(file=cast("IO[str]", out), width=width, highlight=False, markup=False)
    if not listed:
        console.print(nothing)
        return
    columns = COLUMNS[type(listed[0])]
    cells = {head: [show(row) for row in listed] for head, show in columns.items()}
    filled = {head: values for head, values in cells.items() if any(values)}
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for head in filled:
        table.add_column(head, overflow="fold")
    for row in zip(*filled.values(), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
