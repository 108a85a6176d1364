"""A run on a real YARN: the author's package and the engine reach slots that have neither."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import Cancel
from pipelines.domain.events import FailureOccurred, RunEnded
from pipelines.domain.ids import RequestId
from pipelines.domain.status import JobStatus
from pipelines.packages.wheel import FILE
from tests.brokers.yarn import Yarn, written_configuration, yarn
from tests.driven_run import started_run
from tests.flight_runs import SOONER
from tests.java_programs import ProgramMissing
from tests.polling import wait_until
from tests.sent_code import STEP_S, added, assert_ran, parameters

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_a_run_without_room_can_be_cancelled_and_with_room_a_package_runs_despite_a_kill(
    tmp_path: Path,
) -> None:
    """YARN treats a cluster without a node like a full queue."""
    try:
        with yarn(tmp_path / "yarn") as cluster:
            cancelled = cancelled_without_room(tmp_path / "cancelled", cluster)
            cluster.add_node()
            assert_a_package_runs(tmp_path, cluster)
    except ProgramMissing as why:
        pytest.skip(str(why))

    assert cancelled.status is JobStatus.CANCELED
    assert "cancelled by ann: no room" in cancelled.reason


def test_an_unreachable_resource_manager_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with started_run(
        tmp_path,
        "orders",
        parameters(tmp_path),
        master="yarn",
        settings={"slot.request.timeout": "3 s"},
        environment=written_configuration(tmp_path / "away"),
        code=added(tmp_path),
    ) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert "YARN has not started the application of this run within 3 s" in ended.reason
    assert "its ResourceManager does not answer, or its queue is full" in ended.reason


def cancelled_without_room(place: Path, cluster: Yarn) -> RunEnded:
    """Runs a pipeline that YARN cannot start, and cancels it once YARN has accepted it."""
    place.mkdir()
    with started_run(
        place,
        "orders",
        parameters(place),
        master="yarn",
        environment=cluster.environment,
        code=added(place),
    ) as run:
        wait_until(cluster.has_accepted, within_s=STEP_S)
        request = {"request_id": RequestId("no-room"), "requested_by": "ann"}
        submit(run.directory, Cancel(**request, reason="no room"))
        return run.wait_until_over(STEP_S)


def assert_a_package_runs(root: Path, cluster: Yarn) -> None:
    """The slots have neither the package nor the engine, and one of them is killed."""
    code = added(root)
    with started_run(
        root,
        "orders",
        parameters(root),
        master="yarn",
        settings=SOONER,
        environment=cluster.environment,
        code=code,
    ) as run:
        run.wait_for_more(1, STEP_S)
        os.kill(run.pid_of(0), signal.SIGKILL)
        run.wait_for(lambda _: len(run.of(FailureOccurred)) >= 1, STEP_S)
        assert_ran(run, root, code, engine=FILE)
