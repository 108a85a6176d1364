"""The smallest runtime that keeps its side of a sink's contract.

`Host` stores points with pending committables and rewinds before each attempt. An attempt first
commits what it restored. A life ends at a seam, by abandoning every object or by SIGKILL; the next
life continues from what the last one left in its directory.
"""

import base64
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pipelines.connectors.sink import HoldsTarget, Segment, Sink, SinkContext, SinkWriter
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.snapshots import Json

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms", tz="UTC")), ("x", pa.float64())])
RECORDS = 60
EVERYTHING = list(range(RECORDS))


class Seam(StrEnum):
    """Places where a life may end: between any two steps of a checkpoint, and of a recovery."""

    WRITING = "while writing"
    FLUSHED = "all written and none prepared"
    PREPARED = "one of three prepared"
    ACKNOWLEDGED = "all acknowledged"
    DURABLE = "manifest durable"
    COMMITTING = "one of three committed"
    COMMITTED = "committed and not noted"
    RECOVERING = "in the commit of a recovery"


SEAMS = list(Seam)


class Killed(BaseException):
    """Ends a life and leaves everything as it is."""


class Point(msgspec.Struct, frozen=True):
    """The part of a checkpoint that concerns a sink."""

    ancestors: list[tuple[RunId, CheckpointId]]
    run_id: RunId
    checkpoint_id: CheckpointId
    offset: int
    pending: list[tuple[int, CheckpointId, list[Json]]]  # each with the subtask that prepared it

    @property
    def lineage(self) -> list[tuple[RunId, CheckpointId]]:
        return [*self.ancestors, (self.run_id, self.checkpoint_id)]


class Host:
    """Runs records through a sink, a checkpoint every `interval` of them; survives in `home`."""

    def __init__(self, home: Path, sink: Sink, die: Callable[[], None] | None = None) -> None:
        self._home = home / "points"
        self._home.mkdir(exist_ok=True)
        self._sink = sink
        self._die = die or abandon

    def live(
        self,
        run_id: RunId,
        *,
        restore: Point | None = None,
        parallelism: int = 3,
        interval: int = 10,
        until: int = RECORDS,
        seam: Seam | None = None,
        dies_at: int = 2,
        aborted: tuple[int, ...] = (),
    ) -> None:
        """Runs to the offset `until`, or dies at `seam` in the `dies_at`-th interval.

        RECOVERING comes before the first interval. Checkpoints in `aborted` never complete.
        """
        start = self.newest(run_id) or restore
        lineage = start.lineage if start else []
        ancestors = [entry for entry in lineage if entry[0] != run_id]
        offset = start.offset if start else 0
        self._hold(run_id)
        self._sink.rewind(lineage, run_id)
        writers = self._open(run_id, parallelism)
        pending: list[list[tuple[int, CheckpointId, list[Json]]]] = [[] for _ in writers]
        count = 0

        def reach(place: Seam) -> None:
            if place is seam and count == (0 if seam is Seam.RECOVERING else dies_at):
                self._die()

        for old_subtask, checkpoint_id, items in start.pending if start else []:
            writer = writers[old_subtask % parallelism]
            writer.commit(checkpoint_id, [restored(item) for item in items])
            reach(Seam.RECOVERING)
        while offset < until:
            count += 1
            end = min(offset + interval, until)
            middle = (offset + end) // 2
            write(writers, offset, middle)
            reach(Seam.WRITING)
            write(writers, middle, end)
            reach(Seam.FLUSHED)
            checkpoint_id = CheckpointId(self._next(f"{run_id}.checkpoint"))
            for subtask, (writer, mine) in enumerate(zip(writers, pending, strict=True)):
                if committables := writer.prepare(checkpoint_id):
                    mine.append((subtask, checkpoint_id, committables))
                reach(Seam.PREPARED)
            reach(Seam.ACKNOWLEDGED)
            offset = end
            if count in aborted:
                continue
            everything = [
                (subtask, prepared_for, [stored(item) for item in committables])
                for mine in pending
                for subtask, prepared_for, committables in mine
            ]
            self._save(Point(ancestors, run_id, checkpoint_id, offset, everything))
            reach(Seam.DURABLE)
            for writer, mine in zip(writers, pending, strict=True):
                for _, prepared_for, committables in mine:
                    writer.commit(prepared_for, committables)
                mine.clear()
                reach(Seam.COMMITTING)
            reach(Seam.COMMITTED)
        for writer in writers:
            writer.close()

    def perish(
        self,
        run_id: RunId,
        seam: Seam,
        *,
        parallelism: int = 3,
        interval: int = 10,
        dies_at: int = 2,
    ) -> None:
        """Dies at `seam`, in as many lives as that takes."""
        life = partial(self.live, run_id, parallelism=parallelism, interval=interval)
        for death in deaths(seam):
            with pytest.raises(Killed):
                life(seam=death, dies_at=dies_at)

    def point(self, run_id: RunId, checkpoint_id: int) -> Point:
        return msgspec.json.decode(self._file(run_id, checkpoint_id).read_bytes(), type=Point)

    def newest(self, run_id: RunId) -> Point | None:
        files = sorted(self._home.glob(f"{run_id}.*.json"))
        return msgspec.json.decode(files[-1].read_bytes(), type=Point) if files else None

    def lose(self, run_id: RunId, checkpoint_id: int) -> None:
        self._file(run_id, checkpoint_id).unlink()

    def _hold(self, run_id: RunId) -> None:
        """An operator starts the run's first life; the later ones start by themselves."""
        if not isinstance(self._sink, HoldsTarget):
            return
        file = self._home / f"{run_id}.claim"
        if not file.exists():
            run = Holder(run_id=run_id, installation=f"host of {run_id}", started_by="ada")
            claim = Claim.after(self._sink.holder(), run, self._sink.target)
            file.write_bytes(msgspec.json.encode(claim))
        self._sink.hold(msgspec.json.decode(file.read_bytes(), type=Claim))

    def _open(self, run_id: RunId, parallelism: int) -> list[SinkWriter]:
        attempt = Attempt(self._next(f"{run_id}.attempt"))
        contexts = [
            SinkContext(run_id, attempt, Uid("out"), i, parallelism) for i in range(parallelism)
        ]
        return [self._sink.open(context, SCHEMA) for context in contexts]

    def _save(self, point: Point) -> None:
        new = self._home / "new"
        new.write_bytes(msgspec.json.encode(point))
        new.rename(self._file(point.run_id, point.checkpoint_id))

    def _file(self, run_id: RunId, checkpoint_id: int) -> Path:
        return self._home / f"{run_id}.{checkpoint_id:08}.json"

    def _next(self, counter: str) -> int:
        file = self._home / counter
        value = int(file.read_text()) + 1 if file.exists() else 1
        file.write_text(str(value))
        return value


def deaths(seam: Seam) -> list[Seam]:
    """A death in a recovery's commit takes an earlier death with something left to commit."""
    return [Seam.DURABLE, seam] if seam is Seam.RECOVERING else [seam]


def stored(committable: Json) -> Json:
    """The runtime writes a segment to a file; here it becomes text in the point."""
    if not isinstance(committable, Segment):
        return committable
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, SCHEMA) as stream:
        for batch in committable.batches:
            stream.write_batch(batch)
    file = base64.b64encode(content.getvalue()).decode()
    return {"marker": committable.marker, "rows": committable.rows, "file": file}


def restored(item: Json) -> Json:
    if not isinstance(item, dict) or item.keys() != {"marker", "rows", "file"}:
        return item
    batches = list(pa.ipc.open_stream(base64.b64decode(item["file"])))
    return Segment(item["marker"], item["rows"], batches)


def records(ids: list[int]) -> pa.RecordBatch:
    values = [pa.array(ids, pa.int64()), pa.array(ids, SCHEMA.field("at").type)]
    return pa.record_batch([*values, pa.array([i / 3 for i in ids])], schema=SCHEMA)


def write(writers: list[SinkWriter], start: int, end: int) -> None:
    """Writes each record to one subtask, chosen by its id, in batches of two."""
    for subtask, writer in enumerate(writers):
        mine = [i for i in range(start, end) if i % len(writers) == subtask]
        for index in range(0, len(mine), 2):
            writer.write(records(mine[index : index + 2]))


def abandon() -> None:
    raise Killed
