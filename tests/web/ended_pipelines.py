"""Pipelines of the simulated site whose runs have ended."""

from pathlib import Path

import msgspec
from django.conf import settings as project

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Pipeline, Run
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import FailureKind
from pipelines.domain.events import CheckpointFailed, FailureOccurred, LedgerAdvanced
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ledger import LedgerEntry, SourceInput, SplitRange
from pipelines.domain.run import RunSpec
from pipelines.domain.status import CheckpointKind, JobStatus
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.points.stored_views import EVENTS, FLOW, publish_views, write_events
from tests.web import filled_states
from tests.web.journals import Story, new_request, new_run

RECORDS_BETWEEN = 10


def failed_arrivals() -> Run:
    """Makes a run that gave up: its checkpoints failed, and then its disk was full."""
    run = new_run("arrivals")
    story = Story(run).started().sampled().completed().completed()
    for number in (3, 4, 5):
        story.next_checkpoint = CheckpointId(number)
        story.triggered().wait(900).tell(
            CheckpointFailed(
                checkpoint_id=CheckpointId(number),
                reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
                message="hourly-delay[1]: No space is left on the device.",
            )
        )
    cause = "hourly-delay[1] could not write its state: No space is left on the device."
    story.tell(FailureOccurred(cause=cause, slot=1, kind=FailureKind.DISK_FULL))
    story.ended(JobStatus.FAILED, f"No restart is left after 3 within 10 min. {cause}")
    return run


def stopped_views() -> None:
    """Makes a run whose two savepoints were compared before the newer one was truncated."""
    story, paths = with_savepoints("views", 2)
    filled_states.compared(*map(str, paths))
    last = sorted(paths[-1].glob("*.parquet"))[-1]
    last.write_bytes(last.read_bytes()[:-100])
    story.ended()


def spare_clicks() -> None:
    """Makes two pipelines that a test may change.

    One has three savepoints and a ledger of the records read. The other has a savepoint whose state
    fits the first's.
    """
    story, _ = with_savepoints("clicks", 3)
    story.tell(*(ledger_entry(story.run, number) for number in (1, 2, 3)))
    run_directory(story.run).spec_file.write_bytes(msgspec.json.encode(spec_of(story.run)))
    story.ended()
    with_savepoints("clicks-again", 1)[0].ended()


def with_savepoints(name: str, count: int) -> tuple[Story, list[Path]]:
    """Makes a run with `count` savepoints, each after twenty more counted applications."""
    data, jobs = write_events(project.FTDASH_HOME / "events"), Path(project.JOBS_ROOT)
    run = new_run(name, settings={}, parameters={"data": str(data)})
    Pipeline.objects.filter(name=name).update(flow=FLOW, parameters=run.parameters)
    story, paths = Story(run).started(), []
    for number in range(1, count + 1):
        path = jobs / name / "savepoints" / f"savepoint-{run.run_id}-{number}"
        paths.append(path)
        publish_views(
            FileSystemCheckpointStore([str(jobs)]),
            str(path),
            data,
            keys=20 * number,
            run_id=RunId(run.run_id),
            checkpoint_id=CheckpointId(number),
        )
        asked = new_request(run, requester="admin", reason="before the new columns")
        story.completed(CheckpointKind.SAVEPOINT, asked.request_id, str(path))
        story.answered(asked, str(path))
    return story, paths


def ledger_entry(run: Run, number: int) -> LedgerAdvanced:
    end = RECORDS_BETWEEN * number
    split = SplitRange(split="0.csv", first=end - RECORDS_BETWEEN, end=end)
    return LedgerAdvanced(
        entry=LedgerEntry(
            run_id=RunId(run.run_id),
            checkpoint_id=CheckpointId(number),
            records_read=end,
            inputs=[SourceInput(source=EVENTS, records=RECORDS_BETWEEN, splits=[split])],
            outputs=[],
        )
    )


def spec_of(run: Run) -> RunSpec:
    return RunSpec(
        run_id=RunId(run.run_id),
        pipeline=FLOW,
        parallelism=run.parallelism,
        master=run.master,
        parameters=run.parameters,
        settings=run.settings,
    )
