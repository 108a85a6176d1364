"""The two-phase base: lazy transactions, repeated commits, reported losses, and orphans."""

import pytest

from pipelines.connectors import sink_bases
from pipelines.connectors.sink import PrepareRefused, SinkContext
from pipelines.connectors.sink_bases import TwoPhaseCommitWriter
from pipelines.domain.errors import OutputLost, Retryable
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId, RunId, Uid
from tests.contracts.fake_sinks import FakeTransaction, FakeTransactions, FakeTransactionsSink
from tests.contracts.sink_host import SCHEMA, records

FIRST, SECOND = CheckpointId(1), CheckpointId(2)


class Clock:
    """The monotonic clock of the writers, which stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(sink_bases.time, "monotonic", lambda: self.now_s)


def refuse(transaction: FakeTransaction, checkpoint_id: CheckpointId) -> None:
    raise PrepareRefused("Not now.")


def test_an_interval_without_records_begins_no_transaction() -> None:
    sink = FakeTransactionsSink()
    target, writer = opened(sink)
    writer.write(records([]))

    assert writer.prepare(FIRST) == []
    assert target.transactions == []


def test_a_transaction_knows_the_checkpoint_after_which_it_begins() -> None:
    target, writer = opened(FakeTransactionsSink())
    writer.write(records([1]))
    for checkpoint_id in (3, 4, 6):  # the second interval has no records
        writer.prepare(CheckpointId(checkpoint_id))
        if checkpoint_id != 3:
            writer.write(records([checkpoint_id]))

    assert target.begun_after == [NO_CHECKPOINT, 4, 6]


def test_a_transaction_that_cannot_prepare_joins_the_next_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = FakeTransactionsSink()
    target, writer = opened(sink)
    writer.write(records([1]))
    with monkeypatch.context() as patch:
        patch.setattr(FakeTransaction, "prepare", refuse)
        with pytest.raises(PrepareRefused):
            writer.prepare(FIRST)

    writer.write(records([2]))
    prepared = writer.prepare(SECOND)
    writer.commit(SECOND, prepared)

    assert sink.visible() == [1, 2]
    assert len(target.transactions) == 1
    assert "'records': 2" in str(prepared)


def test_a_writer_whose_own_transactions_take_the_room_fails_its_subtask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else no checkpoint completes any more: each waits for the room, and the room for it."""
    clock = Clock(monkeypatch)
    _, writer = opened(FakeTransactionsSink())
    writer.write(records([1]))
    writer.prepare(FIRST)  # for a checkpoint that fails
    writer.write(records([2]))
    monkeypatch.setattr(FakeTransaction, "prepare", refuse)
    with pytest.raises(PrepareRefused):
        writer.prepare(SECOND)
    clock.now_s += sink_bases.ROOM_WITHIN_S - 1
    with pytest.raises(PrepareRefused):
        writer.prepare(CheckpointId(3))

    clock.now_s += 1
    with pytest.raises(Retryable, match=r"Not now\. Transactions since checkpoint 1 wait"):
        writer.prepare(CheckpointId(4))


def test_a_writer_that_got_room_in_between_waits_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    _, writer = opened(FakeTransactionsSink())
    prepare = FakeTransaction.prepare
    for number in range(1, 10, 2):
        monkeypatch.setattr(FakeTransaction, "prepare", prepare)
        writer.write(records([number]))
        writer.prepare(CheckpointId(number))  # no checkpoint completes
        writer.write(records([number + 1]))
        monkeypatch.setattr(FakeTransaction, "prepare", refuse)
        with pytest.raises(PrepareRefused):
            writer.prepare(CheckpointId(number + 1))
        clock.now_s += 2 * sink_bases.ROOM_WITHIN_S


@pytest.mark.parametrize("waits", [True, False], ids=["committed in between", "none waits"])
def test_a_writer_that_lacks_room_for_other_reasons_waits(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    _, writer = opened(FakeTransactionsSink())
    writer.write(records([1] if waits else []))
    prepared = writer.prepare(FIRST)
    writer.write(records([2]))
    monkeypatch.setattr(FakeTransaction, "prepare", refuse)
    with pytest.raises(PrepareRefused):
        writer.prepare(SECOND)
    writer.commit(SECOND, prepared)

    for number in range(3, 6):
        clock.now_s += 2 * sink_bases.ROOM_WITHIN_S
        with pytest.raises(PrepareRefused):
            writer.prepare(CheckpointId(number))


def test_a_prepared_transaction_is_invisible_until_it_is_committed() -> None:
    sink = FakeTransactionsSink()
    _, writer = opened(sink)
    writer.write(records([1]))
    writer.write(records([2]))
    prepared = writer.prepare(FIRST)
    assert sink.visible() == []

    writer.commit(FIRST, prepared)

    assert sink.visible() == [1, 2]


def test_a_transaction_is_committed_once_by_any_number_of_commits_and_writers() -> None:
    sink = FakeTransactionsSink()
    _, writer = opened(sink)
    writer.write(records([1]))
    prepared = writer.prepare(FIRST)
    writer.commit(FIRST, prepared)

    writer.commit(FIRST, prepared)
    opened(sink, attempt=2)[1].commit(FIRST, prepared)

    assert sink.visible() == [1]


def test_a_lost_transaction_is_reported_with_what_it_held() -> None:
    sink = FakeTransactionsSink()
    _, writer = opened(sink)
    writer.prepare(FIRST)
    writer.write(records([1, 2, 3]))
    prepared = writer.prepare(SECOND)
    sink.prepared.clear()

    with pytest.raises(OutputLost) as loss:
        opened(sink, attempt=2)[1].commit(SECOND, prepared)

    assert str(loss.value) == (
        "3 records of out, subtask 0, that attempt 1 of run run-1 wrote between checkpoint 1 and"
        " checkpoint 2 are lost: the system has given it up. Restore a point of before checkpoint"
        " 2, or start from the beginning: what came after it is read and written again."
    )
    assert loss.value.checkpoint_id == SECOND


def test_a_loss_in_the_first_interval_names_the_start() -> None:
    sink = FakeTransactionsSink()
    _, writer = opened(sink)
    writer.write(records([1]))
    prepared = writer.prepare(FIRST)
    sink.prepared.clear()

    with pytest.raises(OutputLost, match="between where it started and checkpoint 1 are"):
        writer.commit(FIRST, prepared)


@pytest.mark.parametrize("first_deed", ["write", "prepare"])
def test_orphans_are_ended_after_the_restored_transactions_are_committed(first_deed: str) -> None:
    sink = FakeTransactionsSink()
    _, dead = opened(sink)
    dead.write(records([1]))
    pending = dead.prepare(FIRST)
    dead.write(records([2]))
    dead.prepare(SECOND)

    _, writer = opened(sink, attempt=2)
    assert len(sink.prepared) == 2
    writer.commit(FIRST, pending)
    if first_deed == "write":
        writer.write(records([3]))
    else:
        writer.prepare(CheckpointId(3))

    assert sink.prepared == {}
    assert sink.visible() == [1]


def test_orphans_of_others_are_left_alone() -> None:
    """The others are of another run, of this attempt, or of a subtask that another one inherits."""
    sink = FakeTransactionsSink()
    others = {"run-0/1/1/0": [1], "run-1/3/2/0": [2], "run-1/2/1/1": [3]}
    sink.prepared = {**others, "run-1/2/1/0": [4], "run-1/2/1/2": [5]}

    opened(sink, attempt=2)[1].prepare(SECOND)

    assert sink.prepared == others


def test_orphans_are_ended_only_once_per_attempt() -> None:
    sink = FakeTransactionsSink()
    _, writer = opened(sink, attempt=2)
    writer.prepare(FIRST)
    sink.prepared = {"run-1/1/1/0": [1]}

    writer.prepare(SECOND)

    assert sink.prepared == {"run-1/1/1/0": [1]}


def test_an_open_transaction_is_abandoned_when_the_writer_closes() -> None:
    target, writer = opened(FakeTransactionsSink())
    writer.write(records([1]))

    writer.close()

    assert [each.is_abandoned for each in target.transactions] == [True]


def opened(
    sink: FakeTransactionsSink, *, attempt: int = 1
) -> tuple[FakeTransactions, TwoPhaseCommitWriter]:
    context = SinkContext(RunId("run-1"), Attempt(attempt), Uid("out"), 0, 2)
    sink.open(context, SCHEMA)
    target = FakeTransactions(sink, context)
    return target, TwoPhaseCommitWriter(target, context, SCHEMA)
