"""The files by which `ftdash dev` and the process that runs the author's pipeline communicate.

`ftdash dev` writes the task, and the process writes a view of its run. This module also finds the
author's part of a traceback.
"""

import re
from pathlib import Path

import msgspec

TASK_FILE, VIEW_FILE = "task.json", "view.json"
LOADING = "LOADING"
REFUSED = "REFUSED"
"""Used as a status: the code does not load, or the run cannot start."""

ENGINE = Path(__file__).parents[1]
SHIPPED_FLOWS = ENGINE / "flows"
_FRAME = re.compile(r'^  File "(.+)", line \d+', re.MULTILINE)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task. `root`: where the run stores its points. If `restore_from` is None, the run starts
    from the beginning."""

    reference: str  # package.module:NAME
    root: str
    parameters: dict[str, str] = {}
    parallelism: int = 1
    settings: dict[str, str] = {}
    restore_from: str | None = None
    allow_non_restored_state: bool = False


class VertexSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators. Records are counted since the start of the attempt."""

    uid: str
    operators: list[str]
    inputs: list[str]
    records_in: int
    records_out: int


class CollectSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The committed rows of a `collect`: their number, and the newest ones as text."""

    uid: str
    row_count: int
    columns: list[str]
    rows: list[list[str]]


class CheckpointSeen(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    path: str
    end_to_end_ms: float
    state_bytes: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run that a person sees. `problem` is empty if nothing is wrong."""

    status: str = LOADING
    run_id: str = ""
    restored_from: str | None = None
    vertices: list[VertexSeen] = []
    checkpoint: CheckpointSeen | None = None
    collects: list[CollectSeen] = []
    savepoint: str | None = None  # the one that the run ended with
    problem: str = ""
    traceback: str = ""  # of the author's code


def authors_part(text: str) -> str:
    """Returns the traceback of the first cause without the frames of the engine.

    If all of its frames are the engine's, the error is ours, and it stays as it is.
    """
    first, _, _ = text.partition("\nThe above exception was the direct cause")
    begins = [found.start() for found in _FRAME.finditer(first)]
    if not begins:
        return first.rstrip()
    ends = [*begins[1:], _end_of_frame(first, begins[-1])]
    frames = [first[begin:end] for begin, end in zip(begins, ends, strict=True)]
    kept = [frame for frame in frames if not _is_ours(frame)] or frames
    return (first[: begins[0]] + "".join(kept) + first[ends[-1] :]).rstrip()


def _end_of_frame(text: str, begin: int) -> int:
    """Returns where a frame ends: it is its line and the indented lines below it."""
    for line in re.finditer(r"^(?=\S)", text[begin:], re.MULTILINE):
        return begin + line.start()
    return len(text)


def _is_ours(frame: str) -> bool:
    found = _FRAME.match(frame)
    file = Path(found[1]) if found else ENGINE
    return file.is_relative_to(ENGINE) and not file.is_relative_to(SHIPPED_FLOWS)
