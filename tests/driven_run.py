"""Runs a pipeline with a real driver process and reads its journal."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from ftdash.supervision.java import environment as java_environment
from pipelines.bus.journal import read_journal
from pipelines.domain.events import (
    CheckpointCompleted,
    Envelope,
    Event,
    JobStatusChanged,
    RunEnded,
    SlotConnected,
)
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.run import RunDirectory, RunSpec, ShippedCode
from pipelines.domain.status import JobStatus

ROOT = Path(__file__).parents[1]
POLL_S = 0.02


@dataclass(slots=True)
class StartedRun:
    directory: RunDirectory
    process: subprocess.Popen[bytes]
    envelopes: list[Envelope] = field(default_factory=list)
    _offset: int = 0

    def poll(self) -> list[Envelope]:
        if self.directory.journal_file.exists():
            news, self._offset = read_journal(self.directory.journal_file, self._offset)
            self.envelopes += news
        return self.envelopes

    def wait_for(self, holds: Callable[[list[Envelope]], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds(self.poll()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not reached in {timeout_s} s: {self.tail()}")
            if self.process.poll() is not None and not holds(self.poll()):
                raise RuntimeError(f"the driver ended first: {self.tail()}")
            time.sleep(POLL_S)

    def wait_for_more(self, count: int, timeout_s: float) -> None:
        """Waits until `count` more checkpoints have completed than have by now."""
        seen = len(self.completed())
        self.wait_for(lambda _: len(self.completed()) >= seen + count, timeout_s)

    def wait_until_cut_at(self, records: int, timeout_s: float) -> CheckpointCompleted:
        """Waits until a checkpoint covers all that a source held at `records` has read."""

        def is_cut_there(_: object) -> bool:
            return bool(self.completed()) and self.completed()[-1].source_records == records

        self.wait_for(is_cut_there, timeout_s)
        return self.completed()[-1]

    def wait_until_over(self, timeout_s: float) -> RunEnded:
        self.wait_for(lambda es: bool(es) and isinstance(es[-1].event, RunEnded), timeout_s)
        self.process.wait(timeout_s)
        ended = self.envelopes[-1].event
        if not isinstance(ended, RunEnded):
            raise RuntimeError("a journal ends with RunEnded")
        return ended

    def of(self, kind: type[Event]) -> list[Envelope]:
        return [envelope for envelope in self.poll() if isinstance(envelope.event, kind)]

    def completed(self) -> list[CheckpointCompleted]:
        events = (envelope.event for envelope in self.poll())
        return [event for event in events if isinstance(event, CheckpointCompleted)]

    def running_at_ms(self) -> int:
        """Returns the time at which all subtasks first ran."""
        return next(
            envelope.at_ms
            for envelope in self.poll()
            if isinstance(envelope.event, JobStatusChanged)
            and envelope.event.status is JobStatus.RUNNING
        )

    def pid_of(self, slot: int) -> int:
        """Returns the id of the last process that took the slot."""
        events = [envelope.event for envelope in self.of(SlotConnected)]
        return [e.pid for e in events if isinstance(e, SlotConnected) and e.slot == slot][-1]

    def tail(self) -> str:
        events = [str(envelope.event)[:2000] for envelope in self.envelopes[-6:]]
        log = self.directory.driver_log
        return f"{events}\n{log.read_text()[-4000:] if log.exists() else ''}"


@contextmanager
def started_run(
    root: Path,
    pipeline: str,
    parameters: dict[str, str],
    *,
    parallelism: int = 2,
    master: str | None = None,
    settings: dict[str, str] | None = None,
    restore_from: str | None = None,
    run_id: RunId | None = None,
    first_checkpoint_id: int = 1,
    place: Callable[..., list[str]] | None = None,
    environment: dict[str, str] | None = None,
    code: ShippedCode | None = None,
) -> Iterator[StartedRun]:
    """Starts a driver in a session of its own. The driver and its children end with the block.

    `place` turns the words of a command into the command that runs it elsewhere.
    """
    directory = written_spec(
        root,
        pipeline,
        parameters,
        parallelism=parallelism,
        master=master,
        settings=settings,
        restore_from=restore_from,
        run_id=run_id,
        first_checkpoint_id=first_checkpoint_id,
        code=code,
    )
    command = [sys.executable, "-m", "pipelines.spark.driver", str(directory.path)]
    with open(directory.driver_log, "ab") as log:
        process = subprocess.Popen(
            command if place is None else place(*command),
            cwd=ROOT,
            env={**os.environ, **java_environment(), **(environment or {})},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield StartedRun(directory, process)
    finally:
        end_session(process)


def written_spec(
    root: Path,
    pipeline: str,
    parameters: dict[str, str],
    *,
    parallelism: int = 2,
    master: str | None = None,
    settings: dict[str, str] | None = None,
    restore_from: str | None = None,
    run_id: RunId | None = None,
    first_checkpoint_id: int = 1,
    code: ShippedCode | None = None,
) -> RunDirectory:
    """Returns the directory of a run that a driver can start; that of an existing run stays."""
    directory = RunDirectory.of(root, pipeline, run_id or RunId(f"run-{uuid.uuid4().hex[:12]}"))
    if not directory.spec_file.exists():
        directory.path.mkdir(parents=True)
        spec = RunSpec(
            run_id=directory.run_id,
            pipeline=pipeline,
            parallelism=parallelism,
            master=master or f"local[{parallelism}]",
            parameters=parameters,
            settings=settings or {},
            restore_from=restore_from,
            first_checkpoint_id=CheckpointId(first_checkpoint_id),
            code=code,
        )
        directory.spec_file.write_bytes(msgspec.json.encode(spec))
    return directory


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kills driver, JVM and Python workers. Workers lead process groups, but share the session."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait(60)
