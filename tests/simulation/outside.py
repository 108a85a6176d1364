"""The world outside of a simulated run: logs to read, and a store to write to.

The store outlives every crash. It takes transactions: a writer writes them, prepares them at a
barrier and commits them by name, as often as it likes. The store refuses a writer of an attempt
that is over, as every real sink does. Now and then it does not answer.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pipelines.connectors.contract import MalformedRecord, SinkContext, Superseded, newest_of
from pipelines.domain.errors import InvariantViolated, ProtocolError, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId

STEP_MS = 1_000  # in event time, from one record to the next
KEYS = 5

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("at", pa.timestamp("ms", tz="UTC"))])
Part = dict[tuple[int, int], int]
"""The number of records of each (source, split)."""


def event(source: int, split: int, offset: int, records: int) -> tuple[int, int, int]:
    """Returns id, key and milliseconds of one record; later splits have later event time."""
    number = (source * 10 + split) * 100 + offset
    return number, (number * 7 + split) % KEYS, (split * records + offset) * STEP_MS


@dataclass(frozen=True)
class SimulatedSource:
    """Splits of `records` each, with the first `ends[split]` available. Implements `Source`.

    It cannot read records with an id in `torn`.
    """

    number: int
    records: int
    ends: dict[int, int]
    batch: int
    torn: frozenset[int] = frozenset()

    schema = SCHEMA
    timestamp_column = "at"
    out_of_orderness_ms = 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"split-{index}" if index in self.ends else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        for start in range(offset, self.ends[index], self.batch):
            end = min(start + self.batch, self.ends[index])
            rows = [event(self.number, index, each, self.records) for each in range(start, end)]
            torn = next((row for row, (number, *_) in enumerate(rows) if number in self.torn), None)
            if rows[:torn]:
                columns = zip(zip(*rows[:torn], strict=True), SCHEMA, strict=True)
                yield pa.record_batch([pa.array(c, f.type) for c, f in columns], schema=SCHEMA)
            if torn is not None:
                at = start + torn
                raise MalformedRecord(f"Record {at} is torn.", row=torn, offset=at, text=b"torn")

    def event_time_ms(self, index: int, offset: int) -> int | None:
        if offset >= self.ends.get(index, 0):
            return None
        return event(self.number, index, offset, self.records)[2]


@dataclass(frozen=True)
class Transaction:
    run_id: RunId
    attempt: Attempt
    checkpoint_id: CheckpointId
    rows: list[tuple[Any, ...]]


def never() -> bool:
    return False


def unnoticed(names: set[str]) -> None:
    del names


@dataclass
class World:
    """The output that a reader sees, and the transactions prepared to become visible.

    `completed` has the newest point of each run. It shows output that is committed before its point
    is complete; its name goes to `early`.
    """

    visible: dict[str, Transaction] = field(default_factory=dict)
    prepared: dict[str, Transaction] = field(default_factory=dict)
    superseded: dict[str, Transaction] = field(default_factory=dict)
    newest_writer: dict[RunId, Attempt] = field(default_factory=dict)
    completed: dict[RunId, CheckpointId] = field(default_factory=dict)  # the newest of each run
    early: list[str] = field(default_factory=list)
    names: int = 0
    fails: Callable[[], bool] = never
    on_rolled_back: Callable[[set[str]], None] = unnoticed  # receives the names of transactions

    def output(self) -> Counter[tuple[Any, ...]]:
        return Counter(row for each in self.visible.values() for row in each.rows)

    def copied(self) -> "World":
        """Returns a copy that always answers."""
        return replace(
            self,
            visible=dict(self.visible),
            prepared=dict(self.prepared),
            superseded=dict(self.superseded),
            newest_writer=dict(self.newest_writer),
            completed=dict(self.completed),
            early=[],
            fails=never,
            on_rolled_back=unnoticed,
        )

    def on_published(self, run_id: RunId, checkpoint_id: CheckpointId) -> None:
        self.completed[run_id] = max(checkpoint_id, self.completed.get(run_id, checkpoint_id))

    def commit(self, name: str) -> None:
        each = self.prepared[name]
        if each.checkpoint_id > self.completed.get(each.run_id, 0):
            self.early.append(f"{name} of checkpoint {each.checkpoint_id}")
        self.visible[name] = self.prepared.pop(name)

    def answer(self) -> None:
        if self.fails():
            raise Retryable("the world outside does not answer")


WORLDS: dict[str, World] = {}
"""The worlds by the name in a pipeline's parameter, since text alone builds a pipeline."""


@dataclass(frozen=True)
class OutsideSink:
    """Two-phase commit into a world. Implements `Sink`."""

    world: str

    guarantee = "exactly-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> "OutsideWriter":
        world = WORLDS[self.world]
        newest = world.newest_writer.get(context.run_id, Attempt(0))
        if context.attempt < newest:
            raise ProtocolError(f"attempt {newest} writes already")
        world.newest_writer[context.run_id] = context.attempt
        return OutsideWriter(world, context)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        world, newest = WORLDS[self.world], newest_of(ancestors)
        world.answer()

        def belongs(each: Transaction) -> bool:
            return each.checkpoint_id <= newest.get(each.run_id, 0)

        foreign = [name for name, each in world.visible.items() if not belongs(each)]
        # What the run set aside of its own, it has written again.
        aside = {name: t for name, t in world.superseded.items() if t.run_id != run_id}
        returning = [name for name, each in aside.items() if belongs(each)]
        for name in foreign:
            world.superseded[name] = world.visible.pop(name)
        for name in returning:
            world.visible[name] = world.superseded.pop(name)
        own = {name for name, each in world.prepared.items() if each.run_id == run_id}
        rolled_back = {name for name in own if not belongs(world.prepared[name])}
        for name in rolled_back:
            del world.prepared[name]
        world.on_rolled_back(rolled_back)
        return Superseded(len(foreign), "aside")


class OutsideWriter:
    def __init__(self, world: World, context: SinkContext) -> None:
        self._world, self._context = world, context
        self._rows: list[tuple[Any, ...]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._refuse_if_fenced()
        self._rows += [tuple(row.values()) for row in batch.to_pylist()]

    def prepare(self, checkpoint_id: CheckpointId) -> list[Any]:
        self._refuse_if_fenced()
        self._world.answer()
        if not self._rows:
            return []
        self._world.names += 1
        name = f"transaction-{self._world.names}"
        context = self._context
        self._world.prepared[name] = Transaction(
            context.run_id, context.attempt, checkpoint_id, self._rows
        )
        self._rows = []
        return [name]

    def commit(self, checkpoint_id: CheckpointId, committables: list[Any]) -> None:
        for name in committables:
            if name in self._world.prepared:
                self._world.answer()
                self._world.commit(name)
            elif name not in self._world.visible and name not in self._world.superseded:
                raise InvariantViolated(f"{name} is lost")

    def close(self) -> None:
        pass

    def _refuse_if_fenced(self) -> None:
        newest = self._world.newest_writer[self._context.run_id]
        if self._context.attempt < newest:
            raise ProtocolError(f"attempt {newest} writes now")
