"""Requests to a run for a savepoint, and its answers."""

from pathlib import Path

from pipelines.bus.inbox import submit
from pipelines.domain.commands import Command, DriverCommand
from pipelines.domain.events import RequestEnded
from pipelines.domain.ids import RequestId
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import RequestOutcome
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.driven_run import StartedRun

WHO = {"request_id": RequestId("asked-1"), "requested_by": "ada", "reason": "test"}
STEP_S = 60.0


def savepoint_by(run: StartedRun, command: DriverCommand) -> Path:
    """Delivers the command, waits for its answer, and returns the path of the savepoint."""
    answer = answered(run, command)
    assert answer.outcome is RequestOutcome.SUCCEEDED, answer.message
    return Path(answer.path or "")


def answered(run: StartedRun, command: Command) -> RequestEnded:
    submit(run.directory, command)  # type: ignore[arg-type]
    run.wait_for(lambda _: len(run.of(RequestEnded)) > 0, STEP_S)
    [ended] = [envelope.event for envelope in run.of(RequestEnded)]
    assert isinstance(ended, RequestEnded)
    return ended


def manifest_of(point: Path) -> Manifest:
    return FileSystemCheckpointStore([str(point)]).manifest(str(point))
