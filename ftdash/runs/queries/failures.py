"""One failure for people and programs: what died, what caused it, and at which records.

Source of the label: Flink, `TypeFailureEnricher`, whose key "type" is USER if a function of the
pipeline raised, and SYSTEM if a process, a connection or Spark failed.
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
    """The name of the last exception in a Python traceback, which is the one that was raised.

    Empty if the text is not a traceback. Further lines of a message do not matter.
    """
    _, found, last = trace.rpartition(_RAISED)
    if not found:
        return ""
    unindented = (line for line in last.splitlines() if line and not line[0].isspace())
    name = _NAME.match(next(unindented, ""))
    return name[0].rpartition(".")[2] if name else ""
