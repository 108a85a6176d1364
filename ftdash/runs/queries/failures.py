"""One failure as people and programs read it: what died, by whom it was caused, at which records.

Source of the label: Flink, `TypeFailureEnricher`, whose key "type" is USER where a function of the
pipeline raised and SYSTEM where a process, a connection or Spark gave way.
"""

import re

from ftdash.jobs.answers import FailureView, RecordsView
from ftdash.jobs.models import Failure

_RAISED = "Traceback (most recent call last):"
_NAME = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")


def failures(run_id: str, limit: int) -> list[FailureView]:
    """The newest `limit` failures of one run, newest first."""
    rows = Failure.objects.filter(run__run_id=run_id).order_by("-sequence")[:limit]
    return [failure_view(row, run_id) for row in rows]


def failure_view(row: Failure, run_id: str) -> FailureView:
    origin = row.origin
    return FailureView(
        run_id=run_id,
        attempt=row.attempt,
        at=row.at,
        cause=row.cause,
        vertex=row.vertex,
        subtask=row.subtask,
        slot=row.slot,
        detail=row.detail,
        label="SYSTEM" if row.operator is None else "USER",
        error_type=error_type(row.detail),
        operator=row.operator,
        records=None
        if origin is None
        else RecordsView(
            source=origin["source"],
            split=origin["split"],
            first_offset=origin["first_offset"],
            last_offset=origin["last_offset"],
            is_moment=origin.get("is_moment", False),
        ),
    )


def error_type(trace: str) -> str:
    """Of Python's text of an exception: the name of the last one, which is what was raised.

    Empty where the text is none. What a message says over further lines does not matter.
    """
    _, found, last = trace.rpartition(_RAISED)
    if not found:
        return ""
    unindented = (line for line in last.splitlines() if line and not line[0].isspace())
    name = _NAME.match(next(unindented, ""))
    return name[0].rpartition(".")[2] if name else ""
