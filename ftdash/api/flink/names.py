"""Flink's names for our things: ids of 32 hexadecimal digits, states, times, and exceptions.

A run is a job; a vertex has the operator id of its uid; a slot is a task manager with one slot. A
run whose state is unknown has Flink's state RECONCILING: known, but silent.

Flink's client reads one field as Java's serialization of an exception: the bytes are an
`org.apache.flink.util.SerializedThrowable` without the original exception, only its text and the
name of its class. Nothing here reads such bytes.

Source: Java Object Serialization Specification 6, chapter 6 (the grammar of the stream).
"""

import base64
import hashlib
import re
import struct
from datetime import datetime, timedelta

from ftdash import times
from ftdash.jobs.answers import ShownState, VertexView
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.ids import Uid, operator_id

HEX_ID = re.compile(r"[0-9a-f]{32}")

JOB_STATES = (
    "INITIALIZING",
    "CREATED",
    "RUNNING",
    "FAILING",
    "FAILED",
    "CANCELLING",
    "CANCELED",
    "FINISHED",
    "RESTARTING",
    "SUSPENDED",
    "RECONCILING",
)
EXECUTION_STATES = (
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
    "INITIALIZING",
)
_TASK_STATES = {  # by the state of the job; other states have the same name
    "CANCELLING": "CANCELING",
    "FAILING": "CANCELING",
    "RESTARTING": "SCHEDULED",
}
_known_jobs: dict[str, str] = {}  # job id to run id; never stale, as it depends only on the run id


def job_id(run_id: str) -> str:
    """Depends only on the run id, so it is the same in every database."""
    return hashlib.sha256(f"ftdash run {run_id}".encode()).hexdigest()[:32]


def run_id_of(job: str) -> str | None:
    if job not in _known_jobs:
        _known_jobs.update({job_id(run_id): run_id for run_id in run_queries.run_ids()})
    return _known_jobs.get(job)


def vertex_id(vertex: VertexView) -> str:
    return operator_id(Uid(vertex.uid))


def vertex_name(vertex: VertexView) -> str:
    chain = " -> ".join(vertex.operators)
    return f"Source: {chain}" if vertex.is_source else chain


def task_manager_id(run_id: str, slot: int) -> str:
    return f"{run_id}-slot-{slot}"


def job_state(state: ShownState) -> str:
    return state.value if state.value in JOB_STATES else "RECONCILING"


def task_state(state: ShownState) -> str:
    """All subtasks of a run are in the same state: they start, run and end together."""
    return _TASK_STATES.get(job_state(state), job_state(state))


def state_counts(state: str, count: int) -> dict[str, int]:
    return {each: count if each == state else 0 for each in EXECUTION_STATES}


def epoch_ms(at: datetime | None) -> int:
    """Returns -1 for a time that was not reached."""
    return -1 if at is None else times.epoch_ms(at)


def started_ms(run: RunFacts) -> int:
    return epoch_ms(run.started_at or run.created_at)


def duration_ms(run: RunFacts) -> int:
    end = run.ended_at or run.now
    return max(0, (end - (run.started_at or run.created_at)) // timedelta(milliseconds=1))


TEXT_MAX = 8_000
"""In characters: the stream has two bytes for a string's length, and up to three a character."""

_HEADER = bytes.fromhex("aced0005")
_OBJECT, _CLASS, _STRING, _REFERENCE, _ARRAY = b"\x73", b"\x72", b"\x74", b"\x71", b"\x75"
_END, _NULL = b"\x78", b"\x70"
_SERIALIZABLE, _WITH_WRITE_METHOD = b"\x02", b"\x03"
_STRING_TYPE = _REFERENCE + struct.pack(">I", 0x7E0001)  # "Ljava/lang/String;", written first
_THROWABLE = "org.apache.flink.util.SerializedThrowable", "65169df51fa713f3"
_EXCEPTION = "java.lang.Exception", "d0fd1f3e1a3b1cc4"
_BASE = "java.lang.Throwable", "d5c635273977b8cb"
_STACK = "[Ljava.lang.StackTraceElement;", "02462a3c3cfd2239"
_NO_CAUSES = "java.util.Collections$EmptyList", "7ab817b43ca79ede"


def serialized_throwable(class_name: str, text: str) -> str:
    """Returns base64. `text` is the text that a client prints; it is cut if too long."""
    text = text[:TEXT_MAX]
    stream = (
        _HEADER
        + _OBJECT
        + _class_of_throwable()
        + _NULL  # cause
        + _string(text)
        + _ARRAY
        + _described(_STACK, _SERIALIZABLE)
        + _NULL
        + struct.pack(">I", 0)
        + _OBJECT
        + _described(_NO_CAUSES, _SERIALIZABLE)
        + _NULL
        + _END  # end of the data that Throwable writes
        + _string(text)
        + _string(class_name)
        + _NULL  # the exception itself
    )
    return base64.b64encode(stream).decode()


def _class_of_throwable() -> bytes:
    own = [
        b"L" + _utf("fullStringifiedStackTrace") + _string("Ljava/lang/String;"),
        b"L" + _utf("originalErrorClassName") + _STRING_TYPE,
        b"[" + _utf("serializedException") + _string("[B"),
    ]
    base = [
        b"L" + _utf("cause") + _string("Ljava/lang/Throwable;"),
        b"L" + _utf("detailMessage") + _STRING_TYPE,
        b"[" + _utf("stackTrace") + _string("[Ljava/lang/StackTraceElement;"),
        b"L" + _utf("suppressedExceptions") + _string("Ljava/util/List;"),
    ]
    return (
        _described(_THROWABLE, _SERIALIZABLE, own)
        + _described(_EXCEPTION, _SERIALIZABLE)
        + _described(_BASE, _WITH_WRITE_METHOD, base)
        + _NULL
    )


def _described(named: tuple[str, str], flags: bytes, fields: list[bytes] | None = None) -> bytes:
    """A class without its parent: its name and version, then its fields."""
    name, version = named
    listed = fields or []
    head = _CLASS + _utf(name) + bytes.fromhex(version) + flags
    return head + struct.pack(">H", len(listed)) + b"".join(listed) + _END


def _string(text: str) -> bytes:
    return _STRING + _utf(text)


def _utf(text: str) -> bytes:
    """Java's modified UTF-8: each UTF-16 unit is encoded by itself, and no byte is zero."""
    wide = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(wide) // 2}H", wide)
    encoded = b"".join(
        b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass") for unit in units
    )
    return struct.pack(">H", len(encoded)) + encoded
