"""The cached history of a run always equals what a new process would read."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries import completed_history as module
from ftdash.checkpoints.queries.completed_history import CompletedHistory, completed_history
from ftdash.jobs.models import Run
from pipelines.domain.status import CheckpointKind
from tests.commit_share import share_of
from tests.web.journals import new_run

pytestmark = pytest.mark.usefixtures("site")

BEGAN_AT = datetime(2026, 11, 21, 14, 2, 11, tzinfo=UTC)


@pytest.mark.parametrize("seed", share_of(range(20), 2))
def test_the_history_equals_what_a_new_process_reads(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints trigger, complete in any order, fail and are deleted, with reads in between."""
    monkeypatch.setattr(module, "COMPLETED_MAX", 4)
    chance = random.Random(seed)
    run = new_run()
    steps = [triggered, triggered, triggered, completed, completed, completed, failed, deleted]
    for _ in range(60):
        chance.choice(steps)(run, chance)
        if chance.random() < 0.4:
            assert rows_of(completed_history(run.run_id)) == rows_of(read_anew(run.run_id))


def test_a_second_reading_loads_only_new_checkpoints() -> None:
    run, chance = new_run(), random.Random(1)
    for _ in range(5):
        triggered(run, chance)
        completed(run, chance)
    completed_history(run.run_id)
    triggered(run, chance)
    completed(run, chance)

    with CaptureQueriesContext(connection) as asked:
        found = completed_history(run.run_id)

    assert len(found) == 6
    (reading,) = [each["sql"] for each in asked if "end_to_end_ms" in each["sql"]]
    assert '"sequence" > 5' in reading


def test_only_the_newest_checkpoints_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPLETED_MAX", 3)
    run, chance = new_run(), random.Random(1)
    for _ in range(5):
        triggered(run, chance)
        completed(run, chance)
        found = completed_history(run.run_id)

    assert found.checkpoint_ids.tolist() == [3, 4, 5]


def read_anew(run_id: str) -> CompletedHistory:
    return module._Kept(run_id).read()


def rows_of(history: CompletedHistory) -> list[list[float]]:
    return [column.tolist() for column in history._columns().values()]


def triggered(run: Run, chance: random.Random) -> None:
    run.last_sequence += 1
    number = run.last_sequence
    Checkpoint.objects.create(
        run=run,
        checkpoint_id=number,
        sequence=number,
        attempt=1,
        kind=CheckpointKind.CHECKPOINT.value,
        status=CheckpointStatus.IN_PROGRESS,
        trigger_at=BEGAN_AT + timedelta(seconds=number),
    )


def completed(run: Run, chance: random.Random) -> None:
    for row in one_of(run, chance, CheckpointStatus.IN_PROGRESS):
        row.status = CheckpointStatus.COMPLETED
        row.end_to_end_ms = chance.random()
        row.alignment_ms = row.state_bytes = row.uploaded_bytes = chance.randint(0, 9)
        row.buffered_bytes = row.persisted_bytes = chance.randint(0, 9)
        row.save()


def failed(run: Run, chance: random.Random) -> None:
    for row in one_of(run, chance, CheckpointStatus.IN_PROGRESS):
        row.status = CheckpointStatus.FAILED
        row.save()


def deleted(run: Run, chance: random.Random) -> None:
    for row in one_of(run, chance, CheckpointStatus.COMPLETED):
        row.delete()


def one_of(run: Run, chance: random.Random, status: CheckpointStatus) -> list[Checkpoint]:
    found = list(Checkpoint.objects.filter(run=run, status=status))
    return chance.sample(found, min(1, len(found)))
