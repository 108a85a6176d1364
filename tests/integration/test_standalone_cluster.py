"""A package on a Spark standalone cluster, each machine a network namespace of its own.

No machine has the package installed, and one worker does not have the engine either: the driver
sends both. The test loses an executor in the middle, and then a whole worker whose cable is cut
before it dies, so that no process hears of it. All our connections are encrypted. The output has
each number once, and names the files that ran.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipelines
from pipelines.domain.events import FailureOccurred, SlotConnected
from pipelines.domain.run import TlsFiles
from pipelines.packages.wheel import FILE
from tests.certificates import Authority
from tests.driven_run import StartedRun, started_run
from tests.flight_runs import SOONER
from tests.sent_code import STEP_S, added, assert_ran, parameters
from tests.standalone_cluster import (
    CannotHaveCluster,
    Cluster,
    Machine,
    is_executor,
    standalone_cluster,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark]

SLOWLY = "500 ms"
"""The pause before each batch, so that numbers arrive while machines are lost."""

SHOW_CERTIFICATES = """
import psutil, ssl, sys
host, pid = sys.argv[1], int(sys.argv[2])
for connection in psutil.Process(pid).net_connections("tcp"):
    if connection.status == psutil.CONN_LISTEN and connection.laddr.ip == host:
        print(ssl.get_server_certificate((host, connection.laddr.port), timeout=20))
"""
"""Run on a machine, for a process of that machine that listens there."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    place = tmp_path / "cluster"
    place.mkdir()
    try:
        with standalone_cluster(place, hidden=Path(pipelines.__file__).parent) as started:
            yield started
    except CannotHaveCluster as refusal:
        pytest.skip(f"No cluster of network namespaces on this machine: {refusal}")


def test_a_lost_executor_and_a_lost_worker_change_nothing_in_the_output(
    cluster: Cluster, tmp_path: Path
) -> None:
    code = added(tmp_path)
    tls = Authority(tmp_path / "tls").issued()
    with started_run(
        tmp_path,
        "orders",
        parameters(tmp_path) | {"pause": SLOWLY},
        master=cluster.url,
        settings=settings_for(cluster, tls),
        place=cluster.master.command,
        environment=cluster.environment,
        code=code,
    ) as run:
        run.wait_for_more(2, STEP_S)
        hosts = {host_of(run, slot) for slot in (0, 1)}
        shown = [
            shown_certificate(cluster.master, run.process.pid),
            shown_certificate(worker_of(cluster, run), run.pid_of(0)),
        ]
        assert worker_of(cluster, run).kill(is_executor) == 1
        wait_for_failures(run, 1)
        run.wait_for_more(2, STEP_S)
        lost = worker_of(cluster, run)
        lost.unplug()
        lost.kill()
        wait_for_failures(run, 2)
        assert_ran(run, tmp_path, code, engine=FILE)

    assert hosts == {worker.address for worker in cluster.workers}, "each worker had a slot"
    assert shown == [Path(tls.certificate).read_text().strip()] * 2
    assert lost.address not in {host_of(run, slot) for slot in (0, 1)}


def worker_of(cluster: Cluster, run: StartedRun) -> Machine:
    """Returns the machine where slot 0 runs now."""
    return next(w for w in cluster.workers if w.address == host_of(run, 0))


def settings_for(cluster: Cluster, tls: TlsFiles) -> dict[str, str]:
    return SOONER | {
        "jobmanager.rpc.address": cluster.master.address,
        "security.ssl.internal.enabled": "true",
        "security.ssl.internal.certificate-file": tls.certificate,
        "security.ssl.internal.key-file": tls.key,
        "security.ssl.internal.ca-file": tls.authority,
        "heartbeat.interval": "500 ms",
        "heartbeat.timeout": "3 s",
    }


def shown_certificate(machine: Machine, pid: int) -> str:
    """Returns the certificate that a stranger gets who dials a port of the process.

    The driver takes slots at its port, and a slot takes its peers.
    """
    command = machine.command(sys.executable, "-c", SHOW_CERTIFICATES, machine.address, str(pid))
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def host_of(run: StartedRun, slot: int) -> str:
    events = [envelope.event for envelope in run.of(SlotConnected)]
    return [e.host for e in events if isinstance(e, SlotConnected) and e.slot == slot][-1]


def wait_for_failures(run: StartedRun, count: int) -> None:
    run.wait_for(lambda _: len(run.of(FailureOccurred)) >= count, STEP_S)
