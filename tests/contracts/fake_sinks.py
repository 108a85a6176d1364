"""Sinks in their simplest form, for the contract: a dictionary instead of a system.

`FakeSink` commits in two phases by itself. The others use the two bases of the connectors.
"""

from collections.abc import Collection, Iterable

import pyarrow as pa

from pipelines.connectors.sink import SinkContext, SinkWriter, Superseded, Unfinished
from pipelines.connectors.sink_bases import (
    Marker,
    TransactionLost,
    TwoPhaseCommitWriter,
    WriteAheadWriter,
)
from pipelines.domain.errors import OutputLost, ProtocolError
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder, taken
from pipelines.domain.snapshots import Json


class FakeSink:
    guarantee = "exactly-once"

    def __init__(self) -> None:
        self.output: dict[str, list[int]] = {}  # name to ids, everything that was ever committed
        self.current: set[str] = set()
        self.repeated: set[str] = set()  # by the run itself, after it fell back
        self.prepared: dict[str, list[int]] = {}
        self.held_by: Holder | None = None
        self.attempt = self.closed = Attempt(0)  # newest; refused up to this one

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        self.check_current(context)
        self.held_by = self.held_by or Holder(run_id=context.run_id)
        self.attempt = context.attempt
        return self.writer(context, schema)

    def writer(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        return FakeWriter(self, context)

    @property
    def target(self) -> str:
        return "a dictionary"

    def holder(self) -> Holder | None:
        return self.held_by

    def hold(self, claim: Claim) -> None:
        before, self.held_by = self.held_by, claim.admit(self.held_by, self.target)
        if before is None or before.run_id != self.held_by.run_id:
            self.attempt = self.closed = Attempt(0)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        self.check_holds(run_id)
        self.closed = self.attempt
        belonging = {
            name
            for name in self.output
            if any(name.split("/")[0] == r and int(name.split("/")[1]) <= c for r, c in ancestors)
        }
        superseded = len(self.current - belonging)
        own = {name for name in self.current if name.split("/")[0] == run_id}
        self.repeated |= own - belonging
        self.current = belonging - self.repeated
        return Superseded(superseded, "nowhere") if superseded else None

    def unfinished(self) -> list[Unfinished]:
        left = [name for name, ids in self.prepared.items() if ids and name not in self.output]
        return [Unfinished(name, RunId(name.split("/")[0]), "entries") for name in left]

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        self.check_holds(run_id)
        found = [name for name in names if self.prepared.pop(name, None) is not None]
        return len(found)

    def visible(self) -> list[int]:
        return sorted(i for name in self.current for i in self.output[name])

    def check_current(self, context: SinkContext) -> None:
        self.check_holds(context.run_id)
        if context.attempt < self.attempt or context.attempt <= self.closed:
            raise ProtocolError("this attempt may not write any more")

    def check_holds(self, run_id: RunId) -> None:
        if self.held_by is not None and self.held_by.run_id != run_id:
            raise taken(self.target, run_id, self.held_by)

    def publish(self, name: str, ids: list[int]) -> None:
        """Inserts without a check, as a system does: a name that exists already gets more ids."""
        self.output[name] = [*self.output.get(name, []), *ids]
        self.current.add(name)


class FakeWriter:
    def __init__(self, sink: FakeSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._ids: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._ids += batch["id"].to_pylist()

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        self._sink.check_current(self._context)
        name = name_of(self._context, checkpoint_id)
        ids, self._ids = self._ids, []
        self._sink.prepared[name] = ids
        return [name] if ids else []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        self._sink.check_current(self._context)
        for name in committables:
            if name not in self._sink.prepared:
                raise OutputLost(f"{name} is lost", checkpoint_id)
            self._sink.output[str(name)] = self._sink.prepared[str(name)]
            self._sink.current.add(str(name))

    def close(self) -> None:
        self._ids = []


class FakeLogSink(FakeSink):
    """Uses the base for write-ahead logs."""

    def writer(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        return WriteAheadWriter(FakeLogTarget(self, context), context)


class FakeLogTarget:
    """The name in the output serves as the marker."""

    def __init__(self, sink: FakeSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context

    def published(self, marker: Marker) -> bool:
        return marker_name(marker) in self._sink.output

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        self._sink.check_current(self._context)
        ids = [i for batch in batches for i in batch["id"].to_pylist()]
        self._sink.publish(marker_name(marker), ids)

    def close(self) -> None:
        pass


class FakeTransactionsSink(FakeSink):
    """Uses the base for two-phase commit; only their owner ends the `prepared` transactions."""

    def writer(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        return TwoPhaseCommitWriter(FakeTransactions(self, context), context, schema)


class FakeTransactions:
    def __init__(self, sink: FakeSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self.transactions: list[FakeTransaction] = []
        self.begun_after: list[CheckpointId] = []

    def begin(
        self, context: SinkContext, schema: pa.Schema, after: CheckpointId
    ) -> "FakeTransaction":
        self.begun_after.append(after)
        self.transactions.append(FakeTransaction(self._sink, context))
        return self.transactions[-1]

    def commit(self, handle: Json) -> None:
        self._sink.check_current(self._context)
        name = str(handle)
        if name in self._sink.prepared:
            self._sink.publish(name, self._sink.prepared.pop(name))
        elif name not in self._sink.output:
            raise TransactionLost("the system has given it up")

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        for name in list(self._sink.prepared):
            run_id, _, attempt, subtask = name.split("/")
            is_older = run_id == context.run_id and int(attempt) < context.attempt
            if is_older and context.inherits(int(subtask)) and name not in keep:
                del self._sink.prepared[name]

    def close(self) -> None:
        pass


class FakeTransaction:
    def __init__(self, sink: FakeSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._ids: list[int] = []
        self.is_abandoned = False

    def write(self, batch: pa.RecordBatch) -> None:
        self._ids += batch["id"].to_pylist()

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        self._sink.check_current(self._context)
        name = name_of(self._context, checkpoint_id)
        self._sink.prepared[name] = self._ids
        return name

    def abandon(self) -> None:
        self.is_abandoned = True


def name_of(context: SinkContext, checkpoint_id: CheckpointId) -> str:
    return f"{context.run_id}/{checkpoint_id}/{context.attempt}/{context.subtask}"


def marker_name(marker: Marker) -> str:
    return f"{marker.run_id}/{marker.checkpoint_id}/{marker.uid}/{marker.subtask}"
