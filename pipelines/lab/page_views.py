"""The flow of the lab: parses page views, counts them by application, writes each to a sink.

Two steps follow the source, each behind an exchange, like Storm's spout and two bolts. A slot that
parses a view of the kill schedule kills its own process with SIGKILL; each place is used once.

The sink writes one row per view, with the time at which a reader could first see it. There are two
kinds of sink, and both write the same bytes. One shows its rows as soon as they are written, like a
sink without transactions. The other shows them with their checkpoint, through the base for
two-phase sinks. Both are only for the lab: a sink owns `directory`, and restores only the newest
point of its own run.

Each view has a time of its own. Views and places follow from a seed, never from the clock.
"""

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors import Draws
from pipelines.connectors.contract import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    CheckpointId,
    Json,
    RunId,
    SinkContext,
    SinkWriter,
    Superseded,
    TransactionLost,
    TwoPhaseCommitWriter,
)
from pipelines.disk.files import create_if_absent
from pipelines.operators.operator import Operator
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    Flow,
    Parameter,
    Pipeline,
    ProcessContext,
    Stream,
    ValueStateDescriptor,
)

FROM, TO = 0.4, 0.8
"""Each fault lies in this part of its own stretch of the input. So no two faults are close
together, and the run takes checkpoints before the first one."""


def kill_places(seed: int, records: int, faults: int) -> tuple[int, ...]:
    """Returns numbers of views, ascending: the first slot to reach such a view dies."""
    rng = random.Random(seed)
    stretch = records / max(faults, 1)
    return tuple(int((index + rng.uniform(FROM, TO)) * stretch) for index in range(faults))


SCHEMA = pa.schema([("line", pa.string()), ("happened_ms", pa.int64())])
APPS = 100
BATCH_ROWS = 1_000
BEGAN = "began"
READ = "read-"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ViewInput:
    """The input. With `rate` 0, all views have happened when the run begins.

    Split i of n holds the views i, i + n, i + 2n, ...; `directory` keeps the time of the beginning
    and the ranges that were read.
    """

    directory: Path
    seed: int
    records: int
    rate: int
    splits: int

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def timestamp_column(self) -> None:
        return None

    @property
    def out_of_orderness_ms(self) -> int:
        return 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"views-{index}" if index < self.splits else None

    def event_time_ms(self, index: int, offset: int) -> None:
        return None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        began_ms = _begun_ms(self.directory)
        end = len(range(index, self.records, self.splits))
        with open(self.directory / f"{READ}{index}", "ab", buffering=0) as read:
            while offset < end:
                due = min(end, self._due(index, began_ms), offset + BATCH_ROWS)
                due = max(due, offset)
                if due > offset:
                    read.write(np.array([offset, due], np.int64).tobytes())
                yield self._views(index, offset, due, began_ms)
                offset = due

    def _due(self, index: int, began_ms: int) -> int:
        """Returns the offset in the split up to which views have happened by now."""
        if not self.rate:
            return self.records
        happened = int((wall_ms() - began_ms) * self.rate / 1000)
        return len(range(index, happened, self.splits))

    def _views(self, index: int, offset: int, end: int, began_ms: int) -> pa.RecordBatch:
        numbers = np.arange(offset, end, dtype=np.int64) * self.splits + index
        since_ms = numbers * 1000 // self.rate if self.rate else np.zeros_like(numbers)
        lines = pc.binary_join_element_wise(
            "/app/",
            pa.array(apps_of(self.seed, numbers)).cast(pa.string()),
            "?view=",
            pa.array(numbers).cast(pa.string()),
            "",
        )
        return pa.record_batch([lines, pa.array(began_ms + since_ms)], schema=SCHEMA)


def apps_of(seed: int, numbers: Numbers) -> Numbers:
    """Returns the application of each view."""
    return Draws(seed, 0, numbers).integers("app", 0, APPS)


def began_ms(directory: Path) -> int:
    """Returns the wall time at which the first view was requested."""
    return int((directory / BEGAN).read_text())


def reads(directory: Path) -> list[tuple[int, Numbers]]:
    """Returns, for each split, the ranges [from, to) of offsets that it emitted, one per row."""
    found = sorted(directory.glob(f"{READ}*"))
    return [
        (int(path.name.removeprefix(READ)), np.fromfile(path, np.int64).reshape(-1, 2))
        for path in found
    ]


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _begun_ms(directory: Path) -> int:
    """Returns the time of the beginning, which the first caller sets."""
    create_if_absent(directory / BEGAN, str(wall_ms()).encode())
    return began_ms(directory)


COLUMNS = ("view", "app", "views", "happened_ms")
ROW = np.dtype([(name, np.int64) for name in (*COLUMNS, "visible_ms")])
"""`views` is the count of the row's application so far."""

Rows = npt.NDArray[np.void]

_VISIBLE, _PENDING = "rows-", ".pending-"
_AT_COMMIT = 0
"""In place of a time: rows of a transaction become visible when their file gets its name."""


@dataclass(frozen=True, slots=True)
class ViewLog:
    directory: Path
    is_transactional: bool

    @property
    def guarantee(self) -> str:
        return EXACTLY_ONCE if self.is_transactional else AT_LEAST_ONCE

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        if self.is_transactional:
            return TwoPhaseCommitWriter(_Transactions(self.directory), context, schema)
        return _PlainWriter(self.directory, context)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Does nothing, because nothing was committed behind the newest point."""
        return None


def visible_rows(directory: Path) -> Rows:
    """Returns each subtask's rows in order of writing, without those that a dying slot cut off."""
    parts = [_read(path) for path in sorted(directory.glob(f"{_VISIBLE}*"))]
    return np.concatenate(parts) if parts else np.zeros(0, ROW)


class _PlainWriter:
    """Hands each row to the kernel at once, so the row survives the death of its process."""

    def __init__(self, directory: Path, context: SinkContext) -> None:
        name = f"{_VISIBLE}{context.attempt:06d}-{0:09d}-{context.subtask}"
        self._file = open(directory / name, "ab", buffering=0)  # noqa: SIM115 - closed by close

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(_bytes_of(batch, wall_ms()))

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        os.fsync(self._file.fileno())
        return []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class _Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pending: str
    visible: str


class _Transaction:
    """A file that gets a visible name when it is committed."""

    def __init__(self, directory: Path, context: SinkContext, after: CheckpointId) -> None:
        self._directory = directory
        self._context = context
        name = f"{_PENDING}{context.attempt:06d}-{after:09d}-{context.subtask}"
        self._path = directory / name
        self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed by both ends

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(_bytes_of(batch, _AT_COMMIT))

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        os.fsync(self._file.fileno())
        self._file.close()
        context = self._context
        name = f"{_VISIBLE}{context.attempt:06d}-{checkpoint_id:09d}-{context.subtask}"
        prepared: Json = msgspec.to_builtins(_Handle(self._path.name, name))
        return prepared

    def abandon(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Transactions:
    """Implements `TwoPhaseCommitTarget`."""

    directory: Path

    def begin(self, context: SinkContext, schema: pa.Schema, after: CheckpointId) -> _Transaction:
        return _Transaction(self.directory, context, after)

    def commit(self, handle: Json) -> None:
        names = msgspec.convert(handle, _Handle)
        pending, visible = self.directory / names.pending, self.directory / names.visible
        if visible.exists():
            return
        try:
            os.utime(pending)  # the time at which the rows become visible
        except FileNotFoundError as gone:
            raise TransactionLost(f"{pending} is gone") from gone
        pending.rename(visible)

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        kept = {msgspec.convert(handle, _Handle).pending for handle in keep}
        for path in self._pending():
            attempt, _, subtask = path.name.removeprefix(_PENDING).split("-")
            is_older = int(attempt) < context.attempt
            if is_older and context.inherits(int(subtask)) and path.name not in kept:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        pass

    def _pending(self) -> Iterator[Path]:
        return self.directory.glob(f"{_PENDING}*")


def _bytes_of(batch: pa.RecordBatch, visible_ms: int) -> bytes:
    rows = np.zeros(batch.num_rows, ROW)
    for name in COLUMNS:
        rows[name] = batch.column(name).to_numpy()
    rows["visible_ms"] = visible_ms
    return rows.tobytes()


def _read(path: Path) -> Rows:
    written = path.read_bytes()
    rows = np.frombuffer(written, ROW, count=len(written) // ROW.itemsize).copy()
    is_committed = rows["visible_ms"] == _AT_COMMIT
    rows["visible_ms"][is_committed] = path.stat().st_mtime_ns // 1_000_000
    return rows


NAME = "guarantee_lab"
SOURCE, PARSE, COUNT, LOG = "page_views", "parse", "count", "log"
STEPS = 2
"""The number of exchanges that each record passes."""

PARSED = pa.schema([("view", pa.int64()), ("app", pa.int64()), ("happened_ms", pa.int64())])
COUNTED = PARSED.append(pa.field("views", pa.int64()))
KILLED = "killed-"

_LINE = r"^/app/(?P<app>\d+)\?view=(?P<view>\d+)$"


class Parse(Operator):
    """Makes one row of each row and reports that lineage: an acker hears of each record once."""

    def __init__(self, directory: Path, kill_places: tuple[int, ...]) -> None:
        self._directory = directory
        self._places = kill_places

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return PARSED

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        fields = pc.extract_regex(batch.column("line"), _LINE)
        view = fields.field("view").cast(pa.int64())
        self._die_if_due(int(pc.max(view).as_py()))
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        app, happened_ms = fields.field("app").cast(pa.int64()), batch.column("happened_ms")
        self.context.collect(pa.record_batch([view, app, happened_ms], schema=PARSED))

    def _die_if_due(self, newest: int) -> None:
        for number, place in enumerate(self._places):
            if newest >= place and self._is_first_at(number, newest):
                os.kill(os.getpid(), signal.SIGKILL)

    def _is_first_at(self, number: int, newest: int) -> bool:
        noted = self._directory / f"{KILLED}{number}"
        return not noted.exists() and create_if_absent(noted, f"{wall_ms()} {newest}".encode())


class CountViews(BatchProcessFunction):
    """Adds to each view the number of views of its application so far, including its batch."""

    def open(self, context: ProcessContext) -> None:
        self._views = context.get_state(ValueStateDescriptor("views", pa.int64()))

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        groups = context.group(batch)
        before = self._views.value(groups.keys).fill_null(0).to_numpy()
        totals = before + np.bincount(groups.index, minlength=groups.count)
        self._views.update(groups.keys, pa.array(totals))
        context.collect(batch.append_column("views", pa.array(totals[groups.index])))


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    directory = Path(parameters["directory"])
    number = {name: int(parameters[name]) for name in ("seed", "records", "rate", "splits")}
    places = tuple(int(place) for place in parameters["kill_places"].split())
    env = Environment()
    counted = counted_views(env, ViewInput(directory, **number), places)
    counted.sink(ViewLog(directory, parameters["is_transactional"] == "yes"), uid=LOG)
    return env.build()


def counted_views(env: Environment, views: ViewInput, kill_places: tuple[int, ...] = ()) -> Stream:
    lines = env.source(views, uid=SOURCE).rebalance()
    node = env.add_operator(
        PARSE, lambda: Parse(views.directory, kill_places), (lines.connection(),)
    )
    return Stream(env, node, None).key_by("app").process(CountViews(), COUNTED, uid=COUNT)


def kills(directory: Path) -> list[tuple[int, int]]:
    """Returns the wall time in milliseconds and the view of each kill, in order."""
    texts = [path.read_text().split() for path in directory.glob(f"{KILLED}*")]
    return sorted((int(at_ms), int(view)) for at_ms, view in texts)


FLOW = Flow(
    name=NAME,
    summary="Page views by application, for the guarantee lab.",
    parameters=(
        Parameter("directory", None, "of input notes and output"),
        Parameter("seed", None, "of the views"),
        Parameter("records", None, "how many views"),
        Parameter("rate", None, "views a second; 0: all have happened"),
        Parameter("splits", None, "of the input"),
        Parameter("kill_places", "", "numbers of views at which a slot dies"),
        Parameter("is_transactional", None, "yes: rows become visible with their checkpoint"),
    ),
    assemble=assemble,
)
