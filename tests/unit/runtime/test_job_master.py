"""The job master from command to journal, with slots played by a script."""

from pathlib import Path

from pipelines.domain.commands import Cancel, StopWithSavepoint
from pipelines.domain.events import CheckpointCompleted, ZombieRefused
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, Uid
from pipelines.domain.status import JobStatus
from pipelines.runtime.control import Failed, Sampled
from tests.unit.runtime.scripted_slots import ScriptedRun, acknowledgement

SOON = {"execution.checkpointing.interval": "20 ms"}


def test_what_an_older_attempt_claims_is_refused_and_shown(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, SOON)
    run.wait_for_checkpoints(1)
    run.slots.acknowledges = False
    run.slots.say(Attempt(1), failure("a slot died"))
    run.wait_for(lambda: run.slots.attempts == [1, 2])

    run.slots.say(Attempt(1), Sampled(subtasks=[], source_records=9, resident_bytes=1, counters={}))
    run.slots.say(Attempt(1), acknowledgement(CheckpointId(7), "left"))
    run.wait_for(lambda: bool(run.of(ZombieRefused)))

    (refused,) = run.of(ZombieRefused)
    assert refused.zombie_attempt == 1
    assert refused.what == "an acknowledgement of checkpoint 7 by left[0]"
    cancel(run)


def test_a_stop_with_savepoint_ends_the_run(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path)
    run.ask(StopWithSavepoint(request_id=RequestId("stop"), requested_by="ann", reason="upgrade"))

    assert run.wait_until_over() is JobStatus.FINISHED
    assert [event.kind.value for event in run.of(CheckpointCompleted)] == ["SAVEPOINT"]


def failure(cause: str) -> Failed:
    return Failed(vertex=Uid("both"), subtask=0, cause=cause, detail="", is_fatal=False)


def cancel(run: ScriptedRun) -> None:
    run.ask(Cancel(request_id=RequestId("cancel"), requested_by="ann", reason="enough"))
    assert run.wait_until_over() is JobStatus.CANCELED
