"""What an author's exception shows: the frames of their code, and the record in work.

The record is a person's data. `pipeline.failures.show-records` decides whether it leaves the slot.
"""

import traceback
from datetime import date
from pathlib import Path

import pyarrow as pa

from pipelines.domain.texts import MASK, is_secret_value, masked

ENGINE = str(Path(__file__).parents[2])
AUTHORS = tuple(f"{ENGINE}/{place}/" for place in ("flows", "lab"))
"""The pipelines that ship are authors' code too."""

TRACE_CHARS_MAX = 8_000
VALUE_CHARS_MAX = 200
RECORD_CHARS_MAX = 2_000


def author_trace(error: BaseException) -> str:
    """The traceback without frames of the engine; empty if the author's code is not in it."""
    told = traceback.TracebackException.from_exception(error)
    if not _keep_authors(told):
        return ""
    text = masked("".join(told.format()))
    return text if len(text) <= TRACE_CHARS_MAX else "...\n" + text[-TRACE_CHARS_MAX:]


def record_text(row: pa.RecordBatch) -> str:
    """A line for each column of one row, with secrets masked and long values cut."""
    columns = zip(row.schema.names, row.columns, strict=True)
    lines = [_line(name, column[0].as_py()) for name, column in columns]
    text = "\n".join(lines)
    return text if len(text) <= RECORD_CHARS_MAX else f"{text[:RECORD_CHARS_MAX]}..."


def _keep_authors(told: traceback.TracebackException) -> bool:
    """Takes the engine's frames out of the error and of those that led to it. True: any is left."""
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if _is_authors(frame.filename)]
    )
    chained = [each for each in (told.__cause__, told.__context__) if each is not None]
    found = [_keep_authors(each) for each in chained]
    return bool(told.stack) or any(found)


def _is_authors(file: str) -> bool:
    if file.startswith("<frozen "):
        return False
    return not file.startswith(f"{ENGINE}/") or file.startswith(AUTHORS)


def _line(name: str, value: object) -> str:
    if is_secret_value(name, value):
        return f"{name}: {MASK}"
    text = masked(str(value) if isinstance(value, date) else repr(value))
    return f"{name}: {text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + '...'}"
