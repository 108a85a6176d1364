"""State and timers of process functions survive kill -9 and rescaling, on every backend."""

import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import FailureOccurred, MetricsSampled, RunStarted
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.numbers import KEYS
from tests.processes.savepoint_requests import WHO, manifest_of, savepoint_by
from tests.processes.timed import committed_totals, expected_totals, reminded_keys

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 900
HELD_AT = 700  # windows have fired and one is open, so every state has something in it
TIMED: dict[str, object] = {"pipeline": "timed"}
OFTEN = {"execution.checkpointing.interval": "50 ms"}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_state_and_timers_of_functions_survive_killed_slots(tmp_path: Path, backend: str) -> None:
    settings = OFTEN | {"state.backend.type": backend}
    with hosted_run(tmp_path, settings=settings, spec_fields=TIMED) as run:
        for slot in (1, 0):
            run.wait_for_more(1, STEP_S)
            os.kill(run.pid_of(slot), signal.SIGKILL)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def test_functions_resume_at_another_parallelism_and_on_another_backend(
    tmp_path: Path,
) -> None:
    with hosted_run(tmp_path, {"held_at": str(HELD_AT)}, settings=OFTEN, spec_fields=TIMED) as run:
        run.wait_until_cut_at(HELD_AT, STEP_S)
        run.wait_for(lambda _: "totals" in metrics_of(run), STEP_S)
        metrics = metrics_of(run)
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    point = manifest_of(savepoint)
    held = {s.state for subtask in point.subtasks for o in subtask.operators for s in o.states}

    with hosted_run(
        tmp_path,
        {"hours_per_s": "0.3"},
        settings=OFTEN | {"state.backend.type": "rocksdb"},
        parallelism=3,
        restore_from=str(savepoint),
        spec_fields=TIMED | {"first_checkpoint_id": point.checkpoint_id + 1},
    ) as run:
        ended = run.wait_until_over(STEP_S)

    assert {"numbers", "numbers.extents", "odd", "odd.keys", "timers.event", "total"} <= held
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(tmp_path / "output")
    assert metrics["rows"] == {("minutes", 0), ("minutes", 1)}
    assert metrics["totals"] == {("running", 0), ("running", 1)}


@pytest.mark.parametrize("fault", ["kill restoring slot=0", "kill restored slot=1"])
def test_renamed_operators_keep_their_state_even_if_the_restore_is_killed(
    tmp_path: Path, fault: str
) -> None:
    with hosted_run(tmp_path, {"held_at": str(HELD_AT)}, settings=OFTEN, spec_fields=TIMED) as run:
        run.wait_until_cut_at(HELD_AT, STEP_S)
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    renamed = {uid: f"new-{uid}" for uid in ("numbers", "minutes", "running")}
    first = manifest_of(savepoint).checkpoint_id + 1

    with hosted_run(
        tmp_path,
        {"hours_per_s": "0.3", "prefix": "new-"},
        settings=OFTEN | {"testing.faults": f"{fault}; kill committed slot=0 attempt=2 nth=2"},
        restore_from=str(savepoint),
        spec_fields=TIMED | {"first_checkpoint_id": first, "renamed_uids": renamed},
    ) as run:
        ended = run.wait_until_over(STEP_S)

    [started, *_] = [each.event for each in run.of(RunStarted)]
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert len(run.of(FailureOccurred)) == 2
    assert started.renamed_uids == renamed
    assert_exact(tmp_path / "output")


def metrics_of(run: StartedRun) -> dict[str, set[tuple[str, int]]]:
    """Returns the subtasks whose functions have reported values, by metric."""
    found: dict[str, set[tuple[str, int]]] = {}
    for envelope in run.of(MetricsSampled):
        for subtask in getattr(envelope.event, "subtasks", ()):
            for metric in subtask.metrics:
                if metric.value:
                    found.setdefault(metric.name, set()).add((metric.operator, subtask.subtask))
    return found


def assert_exact(output: Path) -> None:
    totals = committed_totals(output)
    pd.testing.assert_frame_equal(totals, expected_totals(TOTAL), check_dtype=False)
    assert reminded_keys(output) == list(range(KEYS))
