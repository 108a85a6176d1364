"""Barriers start once their place is ready; otherwise the checkpoint fails with Flink's reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointTriggered
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import Aborted, Inject
from tests.unit.runtime.hosted_checkpoints import INTERVAL_MS, TIMEOUT_MS, Master
from tests.unit.runtime.points import places_in

SAVEPOINT = TriggerRequest(CheckpointKind.SAVEPOINT, RequestId("save"))
Spoil = Callable[[Path, Path], object]
CONCURRENT = {"execution.checkpointing.max-concurrent-checkpoints": "3"}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda place, root: place.write_text("a file"), CheckpointFailureReason.IO_EXCEPTION),
        (
            lambda place, root: place.symlink_to(root.parent),
            CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
        ),
    ],
)
def test_a_directory_that_cannot_be_made_fails_the_checkpoint_before_barriers(
    tmp_path: Path, spoil: Spoil, reason: CheckpointFailureReason
) -> None:
    root = tmp_path / "root"
    place = Path(places_in(root).checkpoints)
    place.parent.mkdir(parents=True)
    master = Master(root)
    spoil(place, root)

    master.trigger()

    (failed,) = master.failed
    assert failed.reason is reason
    assert failed.message != ""
    assert master.attempt.of(Inject) == []
    counts = reason is CheckpointFailureReason.IO_EXCEPTION
    assert bool(master.too_many) is counts


def test_slots_learn_of_checkpoints_in_order_even_if_directories_are_slow(tmp_path: Path) -> None:
    master = Master(tmp_path, CONCURRENT)
    master.places_are_slow = True
    master.trigger()

    master.host.triggers.on_request(SAVEPOINT)
    master.trigger()
    triggered = [event.checkpoint_id for event in master.of(CheckpointTriggered)]
    told = master.attempt.of(Inject)
    master.places_are_slow = False
    master.deliver()
    master.host.on_time()

    assert (triggered, told) == ([1], []), "the next one waits for the place of this one"
    assert [inject.checkpoint_id for inject in master.attempt.of(Inject)] == [1, 2, 3]
    assert [inject.savepoint_format is None for inject in master.attempt.of(Inject)] == [
        True,
        False,
        True,
    ]


def test_a_checkpoint_whose_directory_is_too_slow_expires_and_the_next_starts(
    tmp_path: Path,
) -> None:
    master = Master(tmp_path, {"execution.checkpointing.tolerable-failed-checkpoints": "5"})
    master.places_are_slow = True
    master.trigger()

    master.clock.now_ms += TIMEOUT_MS
    master.places_are_slow = False
    master.host.on_time()
    master.deliver()  # the place of the first checkpoint is ready only now

    (failed,) = master.failed
    assert failed.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
    assert [inject.checkpoint_id for inject in master.attempt.of(Inject)] == [2]
    assert master.attempt.of(Aborted) == [Aborted(checkpoint_id=failed.checkpoint_id)]


def test_a_slow_directory_of_an_ended_attempt_does_not_block_the_next_one(
    tmp_path: Path,
) -> None:
    master = Master(tmp_path)
    master.places_are_slow = True
    master.trigger()

    master.host.on_stopped(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "slot 0 died")
    master.host.on_running(master.attempt)
    master.places_are_slow = False
    master.deliver()
    master.clock.now_ms += INTERVAL_MS
    master.host.on_time()

    assert [inject.checkpoint_id for inject in master.attempt.of(Inject)] == [2]
