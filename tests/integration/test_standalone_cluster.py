"""flight_delays on a Spark standalone cluster, each machine a network namespace of its own.

What is lost in the middle is an executor, or a whole worker whose cable is cut before it dies, so
that nobody is told. The output is that of a batch query.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.events import FailureOccurred, SlotConnected
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun, started_run
from tests.flight_runs import (
    PACED,
    SOONER,
    STEP_S,
    assert_output_is_exact,
    parameters_for,
)
from tests.standalone_cluster import (
    CannotHaveCluster,
    Cluster,
    Machine,
    is_executor,
    standalone_cluster,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    place = tmp_path / "cluster"
    place.mkdir()
    try:
        with standalone_cluster(place) as started:
            yield started
    except CannotHaveCluster as refusal:
        pytest.skip(f"No cluster of network namespaces on this machine: {refusal}")


def test_a_lost_executor_and_a_lost_worker_change_nothing_in_the_output(
    cluster: Cluster, flights: Path, tmp_path: Path
) -> None:
    with started_run(
        tmp_path,
        "flight_delays",
        parameters_for(flights, tmp_path, speed=PACED),
        master=cluster.url,
        settings=settings_for(cluster),
        place=cluster.master.command,
        environment=cluster.environment,
    ) as run:
        run.wait_for_more(2, STEP_S)
        hosts = {host_of(run, slot) for slot in (0, 1)}
        assert worker_of(cluster, run).kill(is_executor) == 1
        wait_for_failures(run, 1)
        run.wait_for_more(2, STEP_S)
        lost = worker_of(cluster, run)
        lost.unplug()
        lost.kill()
        wait_for_failures(run, 2)
        ended = run.wait_until_over(STEP_S)

    assert hosts == {worker.address for worker in cluster.workers}, "each worker had a slot"
    assert lost.address not in {host_of(run, slot) for slot in (0, 1)}
    assert ended.status is JobStatus.FINISHED
    assert_output_is_exact(flights, tmp_path)


def worker_of(cluster: Cluster, run: StartedRun) -> Machine:
    """Where slot 0 runs now."""
    return next(w for w in cluster.workers if w.address == host_of(run, 0))


def settings_for(cluster: Cluster) -> dict[str, str]:
    return SOONER | {
        "jobmanager.rpc.address": cluster.master.address,
        "heartbeat.interval": "500 ms",
        "heartbeat.timeout": "3 s",
    }


def host_of(run: StartedRun, slot: int) -> str:
    events = [envelope.event for envelope in run.of(SlotConnected)]
    return [e.host for e in events if isinstance(e, SlotConnected) and e.slot == slot][-1]


def wait_for_failures(run: StartedRun, count: int) -> None:
    run.wait_for(lambda _: len(run.of(FailureOccurred)) >= count, STEP_S)
