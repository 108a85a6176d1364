"""A driver without Spark: lease, signs of life, journal and inbox are real, the dataflow is not.

The run's parameter `behaviour` says how it acts. `runs` means until it is cancelled or asked to
stop, `dies` means before it takes the lease, and `deaf` runs and answers nothing. A second argument
makes it act as a driver of the machine with that name.
"""

import os
import sys
import time
from pathlib import Path

import msgspec

from pipelines.bus import lease as lease_module
from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease, LeaseHeld
from pipelines.domain.commands import Cancel, StopWithSavepoint
from pipelines.domain.events import (
    JobStatusChanged,
    RequestAccepted,
    RequestEnded,
    RunEnded,
    RunStarted,
)
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus, RequestOutcome
from pipelines.runtime.master.signs_of_life import ControlLoop, SignsOfLife

LIFE_S = 60.0
EXIT_LEASE_HELD = 3


class Clock:
    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def main() -> int:
    directory = RunDirectory(Path(sys.argv[1]))
    spec = msgspec.json.decode(directory.spec_file.read_bytes(), type=RunSpec)
    behaviour = spec.parameters.get("behaviour", "runs")
    if behaviour == "dies":
        print("No Java was found.", flush=True)
        return 1
    if len(sys.argv) > 2:
        lease_module.home = lambda: sys.argv[2]
    try:
        lease = Lease.acquire(directory)
    except LeaseHeld:
        return EXIT_LEASE_HELD
    clock = Clock()
    with (
        lease,
        SignsOfLife(lease, ControlLoop(clock), lambda _: os._exit(EXIT_LEASE_HELD)),
        JournalWriter(directory, spec.run_id, clock, lambda *_: None) as journal,
    ):
        return drive(directory, spec, lease, journal, behaviour)


def drive(
    directory: RunDirectory, spec: RunSpec, lease: Lease, journal: JournalWriter, behaviour: str
) -> int:
    attempt, inbox = lease.next_attempt(), Inbox(directory)
    journal.append(run_started(spec), attempt)
    journal.append(JobStatusChanged(status=JobStatus.RUNNING), attempt)
    ends_at = time.monotonic() + LIFE_S
    while time.monotonic() < ends_at:
        time.sleep(0.02)
        for command in inbox.pending() if behaviour != "deaf" else []:
            request_id, done = command.request_id, RequestOutcome.SUCCEEDED
            journal.append(RequestAccepted(request_id=request_id), attempt)
            ended = RequestEnded(request_id=request_id, outcome=done, message="Done.")
            journal.append(ended, attempt)
            inbox.done(request_id)
            if isinstance(command, Cancel | StopWithSavepoint):
                is_cancel = isinstance(command, Cancel)
                status = JobStatus.CANCELED if is_cancel else JobStatus.FINISHED
                journal.append(JobStatusChanged(status=status), attempt)
                journal.append(RunEnded(status=status, reason="As asked."), attempt)
                return 0
    return 1


def run_started(spec: RunSpec) -> RunStarted:
    return RunStarted(
        pipeline=spec.pipeline,
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        master=spec.master,
        guarantee="exactly once",
        settings=spec.settings,
        restored_from=spec.restore_from,
        driver_pid=os.getpid(),
        vertices=[],
    )


if __name__ == "__main__":
    sys.exit(main())
