"""Commit: exactly once over random crashes and completions, then named corner cases."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.commit import CommitLog, Prepared


@pytest.mark.parametrize("seed", range(300))
def test_everything_is_committed_exactly_once_across_crashes(seed: int) -> None:
    rng = random.Random(seed)
    sink = Sink(rng)

    for _ in range(60):
        rng.choice([sink.write, sink.write, sink.checkpoint, sink.checkpoint, sink.crash])()
    sink.finish()

    assert sink.visible == list(range(sink.written_in_all))


def test_nothing_is_released_before_a_checkpoint_that_contains_it_completes() -> None:
    log = CommitLog()
    log.on_prepared(CheckpointId(1), ["a"])
    log.on_prepared(CheckpointId(2), ["b"])

    assert log.on_completed(CheckpointId(1)) == (Prepared(CheckpointId(1), ("a",)),)


def test_aborted_output_is_released_with_the_next_checkpoint_oldest_first() -> None:
    log = CommitLog()
    log.on_prepared(CheckpointId(1), ["a"])  # aborted: the log hears nothing of it
    log.on_prepared(CheckpointId(2), ["b"])

    released = log.on_completed(CheckpointId(2))

    assert released == (Prepared(CheckpointId(1), ("a",)), Prepared(CheckpointId(2), ("b",)))


def test_a_snapshot_carries_all_output_not_known_to_be_committed() -> None:
    log = CommitLog()
    log.on_prepared(CheckpointId(1), ["a"])

    carried = log.on_prepared(CheckpointId(2), ["b"])

    assert carried == (Prepared(CheckpointId(1), ("a",)), Prepared(CheckpointId(2), ("b",)))


def test_committed_output_is_not_carried_again() -> None:
    log = CommitLog()
    log.on_prepared(CheckpointId(1), ["a"])
    log.on_completed(CheckpointId(1))

    assert log.on_prepared(CheckpointId(2), []) == ()


def test_a_repeated_completion_releases_nothing_twice() -> None:
    log = CommitLog()
    log.on_prepared(CheckpointId(1), ["a"])
    log.on_completed(CheckpointId(1))

    assert log.on_completed(CheckpointId(1)) == ()


def test_an_empty_preparation_is_neither_carried_nor_released() -> None:
    log = CommitLog()

    assert log.on_prepared(CheckpointId(1), []) == ()
    assert log.on_completed(CheckpointId(1)) == ()


def test_restored_output_is_handed_out_once() -> None:
    restored = (Prepared(CheckpointId(3), ("a",)),)
    log = CommitLog(restored)

    assert log.take_restored() == restored
    assert log.take_restored() == ()


@pytest.mark.parametrize("again", [1, 2])
def test_preparing_out_of_order_is_a_bug_and_changes_nothing(again: int) -> None:
    log = CommitLog()
    log.on_prepared(CheckpointId(2), ["b"])

    with pytest.raises(InvariantViolated):
        log.on_prepared(CheckpointId(again), ["x"])

    assert log.on_completed(CheckpointId(2)) == (Prepared(CheckpointId(2), ("b",)),)


class Sink:
    """A writer of the numbers 0, 1, 2, ... whose output appears only when it is committed.

    `visible` is the outside world: commits are idempotent there, and survive every crash.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.visible: list[int] = []
        self.log = CommitLog()
        self.next_number = 0
        self.buffer: list[int] = []
        self.next_checkpoint = 1
        self.durable = 0  # newest completed checkpoint
        self.saved: tuple[int, tuple[Prepared, ...]] = (0, ())  # its position, prepared
        self.written_in_all = 0

    def write(self) -> None:
        self.buffer.append(self.next_number)
        self.next_number += 1
        self.written_in_all = max(self.written_in_all, self.next_number)

    def checkpoint(self, *, completes: bool | None = None) -> None:
        """Prepares, then completes, aborts, or completes without this sink hearing of it."""
        checkpoint_id = CheckpointId(self.next_checkpoint)
        self.next_checkpoint += 1
        carried = self.log.on_prepared(checkpoint_id, list(self.buffer))
        self.buffer = []
        if completes is False or (completes is None and self.rng.random() < 0.3):
            return  # aborted
        self.durable, self.saved = checkpoint_id, (self.next_number, carried)
        if completes or self.rng.random() < 0.7:
            self.commit(self.log.on_completed(checkpoint_id))
        elif self.rng.random() < 0.5:
            self.crash()

    def crash(self) -> None:
        """Loses everything in memory and restores the last completed checkpoint."""
        self.next_number, restored = self.saved
        self.buffer = []
        self.log = CommitLog(restored)
        self.commit(self.log.take_restored())

    def commit(self, released: tuple[Prepared, ...]) -> None:
        for prepared in released:
            assert prepared.checkpoint_id <= self.durable, "released before its checkpoint"
            for number in prepared.committables:
                assert isinstance(number, int)
                if number not in self.visible:  # idempotent: the target knows the transaction
                    self.visible.append(number)

    def finish(self) -> None:
        while self.next_number < self.written_in_all:
            self.write()  # write again what the last crash undid
        self.checkpoint(completes=True)
