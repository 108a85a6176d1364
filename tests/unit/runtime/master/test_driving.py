"""Driving a run: what cannot be run as asked is refused before anything is started."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from pipelines.bus.journal import read_journal
from pipelines.bus.lease import Lease
from pipelines.domain.events import RunEnded
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus
from pipelines.runtime.master.driving import drive
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.master.run_parts import StageHost
from tests.unit.runtime.points import RUN, spec_of


def test_a_run_that_guarantees_less_than_it_must_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    (tmp_path / "0.csv").write_text("1,1,1\n")
    settings = {
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "ftdash.guarantee.required": "EXACTLY_ONCE",
    }
    parameters = {"data": str(tmp_path)}
    spec = spec_of(pipeline="page_view_count", parameters=parameters, settings=settings)
    directory = RunDirectory.of(tmp_path / "jobs", spec.pipeline, RUN)

    with Lease.acquire(directory) as lease:
        directory.spec_file.write_bytes(msgspec.json.encode(spec))
        status = drive(directory, lease, open_nothing)

    assert status is JobStatus.FAILED
    envelopes, _ = read_journal(directory.journal_file, 0)
    ended = envelopes[-1].event
    assert isinstance(ended, RunEnded)
    assert "'at-least-once' from end to end, because execution.checkpointing.mode" in ended.reason


def open_nothing(
    spec: RunSpec, post: Callable[[JobEvent], None]
) -> AbstractContextManager[StageHost]:
    raise NotImplementedError
