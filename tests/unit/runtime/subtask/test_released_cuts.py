"""The RocksDB backend keeps no copy of rows for a cut that no checkpoint stores.

A cut queues a write to the local database, with a copy of the changed rows. Storing the state runs
it. If no checkpoint stores the state, the subtask has to release the cut. Otherwise its slot would
grow with every checkpoint.
"""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.elements import Barrier, Element, Records
from pipelines.domain.errors import Retryable
from pipelines.domain.ids import CheckpointId
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.runtime.subtask.mailbox import CheckpointAborted
from pipelines.state.backend import BatchListDescriptor, TableDescriptor
from pipelines.state.on_disk.sorted_files import Flush
from tests.contracts.rocksdb_slots import TINY_BYTES, RocksDbBackends, rocksdb_backends
from tests.unit.runtime.fakes import SCHEMA, batch_of
from tests.unit.runtime.hosted import (
    LEFT,
    OVERTAKING,
    JoiningSubtask,
    LaterExecutor,
    LocatedWriter,
)

CHECKPOINTS = range(1, 8)
COUNTS = TableDescriptor(
    name="counts",
    key=pa.schema([SCHEMA.field("key")]),
    value=pa.schema([("count", pa.int64())]),
    defaults={"count": 0},
    key_group_by=("key",),
)
ROWS = BatchListDescriptor("rows", SCHEMA, ("key",))


class Emptied(Operator):
    """Has state while it handles a batch, and none at any cut."""

    keeps = False

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._counts = context.state.table(COUNTS)
        self._rows = context.state.batch_list(ROWS)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._rows.append(0, batch)
        rows = self._counts.rows_for(batch.select(["key"]))
        if not self.keeps:
            self._counts.delete(rows)
            self._rows.pop(0)
        self.context.collect(batch)


class Filled(Emptied):
    """Has state at every cut."""

    keeps = True


@pytest.fixture(params=[False, True], ids=["whole", "incremental"])
def backends(request: pytest.FixtureRequest) -> Iterator[RocksDbBackends]:
    with rocksdb_backends(TINY_BYTES, is_incremental=request.param) as found:
        yield found


@pytest.fixture
def unwritten() -> Callable[[], int]:
    """Counts the queued writes that this test has added."""
    earlier = {id(each): each for each in waiting()}
    return lambda: sum(id(each) not in earlier for each in waiting())


def test_a_state_that_is_empty_at_every_cut_leaves_no_copy(
    tmp_path: Path, backends: RocksDbBackends, unwritten: Callable[[], int]
) -> None:
    host = JoiningSubtask(tmp_path, operator=Emptied, backends=backends)

    for number in CHECKPOINTS:
        send_to_both(host, records(number))
        send_to_both(host, barrier(number))
        host.consume()

    assert list(host.reporter.snapshots) == list(CHECKPOINTS)
    assert unwritten() == 0


def test_a_checkpoint_that_fails_leaves_no_copy(
    tmp_path: Path,
    backends: RocksDbBackends,
    unwritten: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise Retryable("the store is away")

    monkeypatch.setattr(LocatedWriter, "write", fail)
    host = JoiningSubtask(tmp_path, operator=Filled, backends=backends)

    for number in CHECKPOINTS:
        send_to_both(host, records(number))
        send_to_both(host, barrier(number))
        host.consume()

    assert [checkpoint_id for checkpoint_id, _ in host.reporter.declines] == list(CHECKPOINTS)
    assert unwritten() == 0


def test_a_checkpoint_that_ends_before_its_upload_leaves_no_copy(
    tmp_path: Path, backends: RocksDbBackends, unwritten: Callable[[], int]
) -> None:
    uploads, left = LaterExecutor(), list[int]()
    host = JoiningSubtask(tmp_path, operator=Filled, backends=backends, uploads=uploads)

    host.run(
        lambda: send_to_both(host, records(1)),
        lambda: send_to_both(host, barrier(1)),
        lambda: host.mailbox.post(CheckpointAborted(CheckpointId(1))),
        uploads.run_all,
        lambda: left.append(unwritten()),
    )

    assert host.reporter.snapshots == {}
    assert left == [0]


def test_a_cut_that_is_given_up_leaves_no_copy(
    tmp_path: Path, backends: RocksDbBackends, unwritten: Callable[[], int]
) -> None:
    """The barrier has come on one side, so the state is cut; records of the other are missing."""
    left = list[int]()
    host = JoiningSubtask(tmp_path, operator=Filled, backends=backends, options=OVERTAKING)

    host.run(
        lambda: send_to_both(host, records(1)),
        lambda: host.inputs[LEFT].send(barrier(1)),
        lambda: host.mailbox.post(CheckpointAborted(CheckpointId(1))),
        lambda: left.append(unwritten()),
    )

    assert host.reporter.snapshots == {}
    assert left == [0]


def waiting() -> list[Flush]:
    """Returns the queued writes of this process. (`isinstance` would wake lazy objects.)"""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Flush and not each.is_done]


def records(key: int) -> Records:
    return Records(batch_of([(key, key)]))


def barrier(checkpoint_id: int) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(checkpoint_id), trigger_ms=0)


def send_to_both(host: JoiningSubtask, element: Element) -> None:
    for output in host.inputs.values():
        output.send(element)
