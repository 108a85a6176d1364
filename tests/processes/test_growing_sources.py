"""Files that appear during a run are read once, despite kill -9 and at any parallelism."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.commands import StopWithSavepoint
from tests.processes.growing import committed_keys, inbox_of, put
from tests.processes.host import hosted_run
from tests.processes.savepoint_requests import WHO, manifest_of, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 60.0
OFTEN = {"execution.checkpointing.interval": "50 ms"}
GROWING: dict[str, object] = {"pipeline": "growing"}


def test_new_files_are_read_once_despite_kills_and_restores(tmp_path: Path) -> None:
    output = tmp_path / "output"
    put(output, "a", range(0, 100))
    with hosted_run(tmp_path, settings=OFTEN, spec_fields=GROWING) as run:
        run.wait_for(lambda _: committed_keys(output) == list(range(100)), STEP_S)
        put(output, "c", range(100, 200))
        put(output, "b", range(200, 300))
        run.wait_for(lambda _: committed_keys(output) == list(range(300)), STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        put(output, "d", range(300, 400))
        run.wait_for(lambda _: committed_keys(output) == list(range(400)), STEP_S)
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    put(output, "e", range(400, 500))

    with hosted_run(
        tmp_path,
        settings=OFTEN,
        parallelism=3,
        restore_from=str(savepoint),
        spec_fields=GROWING | {"first_checkpoint_id": manifest_of(savepoint).checkpoint_id + 1},
    ) as run:
        run.wait_for(lambda _: committed_keys(output) == list(range(500)), STEP_S)


def test_all_slots_read_the_files_that_the_driver_has_listed(tmp_path: Path) -> None:
    """Every process that looks adds another file in between."""
    output = tmp_path / "output"
    for number in range(6):
        put(output, f"a-{number}", range(10 * number, 10 * number + 10))
        put(output, f"z-{number}", range(60 + 10 * number, 70 + 10 * number))

    with hosted_run(tmp_path, {"fixed": "true"}, spec_fields=GROWING, parallelism=3) as run:
        run.wait_until_over(STEP_S)

    assert len(list(inbox_of(output).iterdir())) > 12
    assert committed_keys(output) == list(range(120))
