"""Runs a flow from its start to its end, and measures its speed and its processor time."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipelines.domain.events import Envelope, JobStatusChanged, RunEnded, SlotConnected
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun

RUN_TIMEOUT_S = 600.0

Start = Callable[[Path, dict[str, str], dict[str, str]], AbstractContextManager[StartedRun]]
"""Starts a run, from its root, parameters and settings."""


@dataclass(frozen=True, slots=True)
class Measured:
    records_per_s: float
    checkpoints: int
    seconds: float
    processor_s: float  # of the driver, its children and all slots, while it ran


class ProcessorTime:
    """The processor time that a run's processes take from the first look on.

    Every look asks the living processes. A process that has ended counts with its time at the last
    look.
    """

    def __init__(self, run: StartedRun) -> None:
        self._run = run
        self._known: dict[int, psutil.Process] = {}
        self._before: dict[int, float] = {}
        self._taken: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        return sum(taken - self._before[pid] for pid, taken in self._taken.items())

    def look(self) -> None:
        """Updates the times; before all subtasks run, it does nothing."""
        if not self._before and self._is_running():
            self._ask_those_there()
        for pid, process in list(self._known.items()):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                del self._known[pid]
                continue
            self._taken[pid] = times.user + times.system
            self._before.setdefault(pid, self._taken[pid])

    def _is_running(self) -> bool:
        changes = [envelope.event for envelope in self._run.of(JobStatusChanged)]
        return JobStatusChanged(status=JobStatus.RUNNING) in changes

    def _ask_those_there(self) -> None:
        """Finds the run's processes once: no slot joins later, for no measured run loses a slot."""
        connected = [envelope.event for envelope in self._run.of(SlotConnected)]
        slots = [event.pid for event in connected if isinstance(event, SlotConnected)]
        with suppress(psutil.NoSuchProcess):  # a short run is over already
            driver = psutil.Process(self._run.process.pid)
            family = [driver, *driver.children(recursive=True), *map(psutil.Process, slots)]
            self._known = {process.pid: process for process in family}


def run_to_its_end(
    records: int, parameters: dict[str, str], settings: dict[str, str], start: Start
) -> Measured:
    """Measures a run from all subtasks running to everything committed.

    Raises RuntimeError if the run fails.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        start(Path(root), parameters, settings) as run,
    ):
        processor = ProcessorTime(run)

        def is_over_when_looked_at(envelopes: list[Envelope]) -> bool:
            processor.look()
            return bool(envelopes) and isinstance(envelopes[-1].event, RunEnded)

        run.wait_for(is_over_when_looked_at, RUN_TIMEOUT_S)
        ended = run.wait_until_over(RUN_TIMEOUT_S)
        if ended.status is not JobStatus.FINISHED:
            raise RuntimeError(ended.reason)
        last = run.completed()[-1]
        if last.source_records != records:
            raise RuntimeError(f"read {last.source_records} of {records} records")
        took_s = (run.envelopes[-1].at_ms - run.running_at_ms()) / 1000.0
        return Measured(records / took_s, len(run.completed()), took_s, processor.seconds)
