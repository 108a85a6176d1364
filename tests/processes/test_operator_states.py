"""State that belongs to no key, under kills and from 2 to 3, 1, 5 and 4 subtasks."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.key_groups import Redistribution
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.savepoint_requests import WHO, manifest_of, savepoint_by
from tests.processes.shared_lists import ELEMENTS, elements_in, reports_in

pytestmark = pytest.mark.slow

STEP_S = 60.0
ALL = list(range(ELEMENTS))
SETTINGS = {"execution.checkpointing.interval": "50 ms"}


def test_split_elements_have_one_owner_and_every_subtask_gets_the_others(tmp_path: Path) -> None:
    point: Path | None = None

    for parallelism in (2, 3, 1, 5, 4):
        with started(tmp_path, parallelism, point) as run:
            wait_for_reports(run, tmp_path, parallelism)
            if parallelism in (2, 5):
                kill_and_recover(run, slot=1)
            point = savepoint_by(run, StopWithSavepoint(**WHO))
            run.wait_until_over(STEP_S)

        manifest = manifest_of(point)
        split = elements_in(point, manifest, Redistribution.SPLIT)
        union = elements_in(point, manifest, Redistribution.UNION)
        assert len(manifest.subtasks) >= parallelism
        assert sorted(n for held in split for n in held) == ALL
        assert sorted(n for held in union for n in held) == ALL
        assert elements_in(point, manifest, Redistribution.BROADCAST) == [ALL] * parallelism
        if parallelism != 2:
            assert_all_were_given_everything(tmp_path, parallelism)


def assert_all_were_given_everything(root: Path, parallelism: int) -> None:
    """Checks the reports of subtasks that began to work on restored state, some of them twice."""
    reports = reports_in(root / "output", parallelism)
    given = {state: [r for r in reports if r["state"] == state] for state in ("union", "broadcast")}
    for state, of_state in given.items():
        assert {report["subtask"] for report in of_state} == set(range(parallelism)), state
        assert all(sorted(report["elements"]) == ALL for report in of_state), state  # type: ignore[call-overload]


def wait_for_reports(run: StartedRun, root: Path, parallelism: int) -> None:
    """Waits until all subtasks work and all elements are somewhere."""

    def have_all_begun(_: object) -> bool:
        reports = reports_in(root / "output", parallelism)
        return len({report["subtask"] for report in reports}) == parallelism

    run.wait_for(have_all_begun, STEP_S)


def kill_and_recover(run: StartedRun, slot: int) -> None:
    run.wait_for(lambda _: has_read_elements(run), STEP_S)
    os.kill(run.pid_of(slot), signal.SIGKILL)
    run.wait_for_more(2, STEP_S)


def has_read_elements(run: StartedRun) -> bool:
    return any(point.source_records > ELEMENTS for point in run.completed())


@contextmanager
def started(root: Path, parallelism: int, point: Path | None) -> Iterator[StartedRun]:
    first_id = 1 if point is None else manifest_of(point).checkpoint_id + 1
    with hosted_run(
        root,
        settings=SETTINGS,
        parallelism=parallelism,
        restore_from=None if point is None else str(point),
        spec_fields={"pipeline": "shared_lists", "first_checkpoint_id": first_id},
    ) as run:
        yield run
