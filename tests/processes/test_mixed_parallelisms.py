"""Operators of different parallelisms in processes: kills, a savepoint, and a rescale."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import CheckpointTriggered, SlotConnected
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.mixed import SLOTS
from tests.processes.numbers import assert_exact, committed, expected
from tests.processes.savepoint_requests import WHO, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 60.0
CHECKPOINTING = "execution.checkpointing."
SOONER = {CHECKPOINTING + "interval": "50 ms"}
MODES = {
    "aligned": {},
    "unaligned": {CHECKPOINTING + "unaligned.enabled": "true"},
}
MIXED: dict[str, object] = {"pipeline": "numbers_mixed"}
SUBTASKS = 1 + 3 + SLOTS + 2
"""Subtasks of numbers, digest, totals and the sink, which has the parallelism of the run."""


@pytest.mark.parametrize("mode", MODES)
def test_killing_a_slot_with_only_the_widest_operator_changes_nothing(
    mode: str, tmp_path: Path
) -> None:
    settings = {**SOONER, **MODES[mode]}
    with hosted_run(tmp_path, {"pause_ms": "150"}, settings=settings, spec_fields=MIXED) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.pid_of(SLOTS - 1), signal.SIGKILL)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)
        counts = {e.event.subtask_count for e in run.of(CheckpointTriggered)}  # type: ignore[attr-defined]

    assert ended.status is JobStatus.FINISHED
    assert slots_of(run) == set(range(SLOTS))
    assert counts == {SUBTASKS}
    assert_exact(tmp_path / "output")


@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_rescale_keeps_the_explicit_parallelism_of_an_operator(
    parallelism: int, tmp_path: Path
) -> None:
    with hosted_run(tmp_path, {"pause_ms": "150"}, settings=SOONER, spec_fields=MIXED) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        savepoint = str(savepoint_by(run, StopWithSavepoint(**WHO)))
    assert len(committed(tmp_path / "output")) < len(expected(7_200))

    hurry(tmp_path)
    with hosted_run(
        tmp_path,
        settings=SOONER,
        spec_fields=MIXED,
        parallelism=parallelism,
        restore_from=savepoint,
    ) as again:
        ended = again.wait_until_over(STEP_S)
        counts = {e.event.subtask_count for e in again.of(CheckpointTriggered)}  # type: ignore[attr-defined]

    assert ended.status is JobStatus.FINISHED
    assert counts == {1 + 3 + SLOTS + parallelism}
    assert_exact(tmp_path / "output")


def test_acked_mode_tracks_every_record_between_different_parallelisms(tmp_path: Path) -> None:
    """Ackers run in the slots of the widest operator."""
    settings = {**SOONER, CHECKPOINTING + "mode": "ACKED", "topology.acker.executors": "4"}
    with hosted_run(tmp_path, settings=settings, spec_fields=MIXED) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert slots_of(run) == set(range(SLOTS))
    assert run.completed()[-1].counters["numbers.spout_acked"] == 7_200


def slots_of(run: StartedRun) -> set[int]:
    return {e.event.slot for e in run.of(SlotConnected)}  # type: ignore[attr-defined]
