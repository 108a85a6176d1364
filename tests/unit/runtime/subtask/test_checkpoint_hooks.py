"""Functions update their state before a cut, and hear the outcome of its checkpoint."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.elements import Barrier, Records
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId
from pipelines.operators.processing.process import Process
from pipelines.operators.rows import Row
from pipelines.runtime.subtask.mailbox import CheckpointAborted, CheckpointCompleted
from pipelines.runtime.subtask.operator_failure import OperatorFailed
from pipelines.runtime.subtask.subtask import Step
from pipelines.state.operator_states import OperatorListState
from pipelines.stream import (
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    RowContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from tests.unit.runtime.fakes import SCHEMA, batch_of, keys_of
from tests.unit.runtime.hosted import LEFT, RIGHT, JoiningSubtask
from tests.unit.runtime.permits import permit

GATHERED = ListStateDescriptor("key", pa.int64())
LAST = ValueStateDescriptor("last", pa.int64())
HOOKS = ["snapshot_state", "notify_checkpoint_complete", "notify_checkpoint_aborted"]
Told = list[tuple[str, int]]


class Hooked:
    """A function of any kind that passes each hook to `at`."""

    def initialize_state(self, _: object) -> None:
        self.at("initialize_state", 0)

    def snapshot_state(self, checkpoint_id: CheckpointId) -> None:
        self.at("snapshot_state", checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        self.at("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        self.at("notify_checkpoint_aborted", checkpoint_id)

    def at(self, hook: str, checkpoint_id: int) -> None:
        raise NotImplementedError


class Gathering(Hooked):
    """A function that puts what it has gathered into its state only at a checkpoint."""

    kept: OperatorListState

    def __init__(self, told: Told) -> None:
        self._tell = told.append  # a copy also appends to the test's list
        self.gathered: list[int] = []

    def open(self, context: ProcessContext | RuntimeContext) -> None:
        self.kept = context.get_operator_list_state(GATHERED)

    def at(self, hook: str, checkpoint_id: int) -> None:
        if hook == "snapshot_state":
            self.kept.update(pa.array(self.gathered, pa.int64()))
        if hook in HOOKS:
            self._tell((hook, checkpoint_id))


class GathersBatches(Gathering, BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self.gathered += keys_of(batch)

    process_other_batch = process_batch


class GathersRows(Gathering, KeyedProcessFunction):
    def process_element(self, row: Row, context: RowContext) -> None:
        self.gathered.append(row["key"])

    process_other_element = process_element


class Raises(Hooked, BatchProcessFunction):
    def __init__(self, hook: str) -> None:
        self._hook = hook

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        pass

    def at(self, hook: str, checkpoint_id: int) -> None:
        if hook == self._hook:
            raise ArithmeticError("too large")


class Emits(Hooked, BatchProcessFunction):
    def __init__(self, hook: str) -> None:
        self._hook = hook

    def open(self, context: ProcessContext) -> None:
        self._context = context

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        context.collect(batch)

    def at(self, hook: str, checkpoint_id: int) -> None:
        if hook == self._hook:
            self._context.collect(batch_of([(1, 1)]))


class WritesWithoutKey(Hooked, KeyedProcessFunction):
    def __init__(self, hook: str) -> None:
        self._hook = hook

    def open(self, runtime: RuntimeContext) -> None:
        self._last = runtime.get_state(LAST)

    def process_element(self, row: Row, context: RowContext) -> None:
        self._last.update(row["key"])

    def at(self, hook: str, checkpoint_id: int) -> None:
        if hook == self._hook:
            self._last.update(99)


@pytest.mark.parametrize("gathers", [GathersBatches, GathersRows])
def test_a_hook_snapshots_the_buffer_of_a_function_exactly_at_the_barrier(
    tmp_path: Path, gathers: type[GathersBatches] | type[GathersRows]
) -> None:
    host = hosting(tmp_path, gathers([]))

    send(host, LEFT, 1, 2)
    send(host, RIGHT, 3)
    cut(host, 1)
    send(host, LEFT, 4)
    consume(host)

    assert sorted(host.seen_at(1)) == [1, 2, 3]


@pytest.mark.parametrize("gathers", [GathersBatches, GathersRows])
def test_a_function_is_notified_once_of_the_outcome_of_each_checkpoint(
    tmp_path: Path, gathers: type[GathersBatches] | type[GathersRows]
) -> None:
    told: Told = []
    host = hosting(tmp_path, gathers(told))

    cut(host, 1)
    host.subtask.mailbox.post(CheckpointCompleted(permit(1)))
    consume(host)
    cut(host, 2)
    host.subtask.mailbox.post(CheckpointAborted(CheckpointId(2)))
    consume(host)

    assert told == [
        ("snapshot_state", 1),
        ("notify_checkpoint_complete", 1),
        ("snapshot_state", 2),
        ("notify_checkpoint_aborted", 2),
    ]


@pytest.mark.parametrize("hook", HOOKS)
def test_an_exception_in_a_hook_is_a_failure_of_its_operator(tmp_path: Path, hook: str) -> None:
    with pytest.raises(OperatorFailed, match="ArithmeticError: too large") as failed:
        go_through_every_hook(tmp_path, Raises(hook))

    assert failed.value.operator == "both"


@pytest.mark.parametrize("hook", ["initialize_state", *HOOKS])
def test_a_hook_may_not_emit_because_no_checkpoint_would_hold_the_records(
    tmp_path: Path, hook: str
) -> None:
    with pytest.raises(OperatorFailed, match="a failure would lose or repeat") as failed:
        go_through_every_hook(tmp_path, Emits(hook))

    assert isinstance(failed.value.error, Rejected)


def test_a_checkpoint_does_not_disturb_the_emission_of_records(tmp_path: Path) -> None:
    host = hosting(tmp_path, Emits(hook="none"))

    send(host, LEFT, 1)
    cut(host, 1)
    send(host, LEFT, 2)
    consume(host)

    assert host.sink.written == [1, 2]


@pytest.mark.parametrize("hook", ["initialize_state", *HOOKS])
def test_a_hook_may_not_use_keyed_state_because_it_has_no_key(tmp_path: Path, hook: str) -> None:
    with pytest.raises(OperatorFailed, match="used without a key"):
        go_through_every_hook(tmp_path, WritesWithoutKey(hook))


def go_through_every_hook(
    root: Path, function: BatchProcessFunction | KeyedProcessFunction
) -> None:
    host = hosting(root, function)
    send(host, LEFT, 7)
    for number in (1, 2):
        cut(host, number)
    host.subtask.mailbox.post(CheckpointCompleted(permit(1)))
    host.subtask.mailbox.post(CheckpointAborted(CheckpointId(2)))
    consume(host)


def hosting(root: Path, function: BatchProcessFunction | KeyedProcessFunction) -> JoiningSubtask:
    keys = (("key",), ("key",))
    return JoiningSubtask(root, operator=lambda: Process(function, keys, SCHEMA, "both"))


def send(host: JoiningSubtask, side: str, *keys: int) -> None:
    host.inputs[side].send(Records(batch_of([(key, 0) for key in keys])))


def cut(host: JoiningSubtask, number: int) -> None:
    for side in (LEFT, RIGHT):
        host.inputs[side].send(Barrier(checkpoint_id=CheckpointId(number), trigger_ms=0))
    consume(host)


def consume(host: JoiningSubtask) -> None:
    """Lets the subtask handle mail and input until none is left."""
    while host.subtask.step() is Step.WORKED:
        continue
