"""A run on a real YARN: the author's package and the engine reach slots that have neither."""

import os
import signal
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    try:
        with yarn(tmp_path_factory.mktemp("yarn")) as started:
            yield started
    except ProgramMissing as why:
        pytest.skip(str(why))


def test_a_package_runs_on_yarn_without_installation_and_survives_a_kill(
    tmp_path: Path, cluster: Yarn
) -> None:
    code = added(tmp_path)

    with started_run(
        tmp_path,
        "orders",
        parameters(tmp_path),
        master="yarn",
        settings=SOONER,
        environment=cluster.environment,
        code=code,
    ) as run:
        run.wait_for_more(1, STEP_S)
        os.kill(run.pid_of(0), signal.SIGKILL)
        run.wait_for(lambda _: len(run.of(FailureOccurred)) >= 1, STEP_S)
        assert_ran(run, tmp_path, code, engine=FILE)


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


def test_a_run_without_room_ends_with_a_sentence_and_obeys_a_cancellation(
    tmp_path: Path,
) -> None:
    """YARN treats a cluster without a node like a full queue."""
    try:
        with yarn(tmp_path / "yarn", has_node=False) as cluster:
            waited = run_without_room(tmp_path / "waits", cluster, {"slot.request.timeout": "5 s"})
            cancelled = run_without_room(tmp_path / "cancelled", cluster, {}, cancel=True)
    except ProgramMissing as why:
        pytest.skip(str(why))

    assert waited.status is JobStatus.FAILED
    assert "its ResourceManager does not answer, or its queue is full" in waited.reason
    assert cancelled.status is JobStatus.CANCELED
    assert "cancelled by ann: no room" in cancelled.reason


def run_without_room(
    place: Path, cluster: Yarn, settings: dict[str, str], *, cancel: bool = False
) -> RunEnded:
    """Runs a pipeline that YARN cannot start. `cancel` cancels it once YARN has accepted it."""
    place.mkdir()
    with started_run(
        place,
        "orders",
        parameters(place),
        master="yarn",
        settings=settings,
        environment=cluster.environment,
        code=added(place),
    ) as run:
        if cancel:
            wait_until(lambda: any(each["state"] == "ACCEPTED" for each in cluster.applications()))
            request = {"request_id": RequestId("no-room"), "requested_by": "ann"}
            submit(run.directory, Cancel(**request, reason="no room"))
        return run.wait_until_over(STEP_S)
