"""One run of a flow from its start to its end, and how fast it went."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun

RUN_TIMEOUT_S = 600.0

Start = Callable[[Path, dict[str, str], dict[str, str]], AbstractContextManager[StartedRun]]
"""Root, parameters and settings of a run that is to be started."""


@dataclass(frozen=True, slots=True)
class Measured:
    records_per_s: float
    checkpoints: int
    seconds: float


def run_to_its_end(
    records: int, parameters: dict[str, str], settings: dict[str, str], start: Start
) -> Measured:
    """From all subtasks running to everything committed. Raises RuntimeError if it fails."""
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        start(Path(root), parameters, settings) as run,
    ):
        ended = run.wait_until_over(RUN_TIMEOUT_S)
        if ended.status is not JobStatus.FINISHED:
            raise RuntimeError(ended.reason)
        last = run.completed()[-1]
        if last.source_records != records:
            raise RuntimeError(f"read {last.source_records} of {records} records")
        took_s = (run.envelopes[-1].at_ms - run.running_at_ms()) / 1000.0
        return Measured(records / took_s, len(run.completed()), took_s)
