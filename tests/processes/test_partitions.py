"""A network that holds packets back, delays them or loses some: noticed, survived, output exact.

A cut network resets no connection: each side has to find out by itself.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointTriggered,
    FailureOccurred,
    JobStatusChanged,
    SlotConnected,
)
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.emulated_network import EmulatedNetwork, Link, emulated_network
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact
from tests.standalone_cluster import CannotHaveCluster

pytestmark = pytest.mark.slow

STEP_S = 60.0
DETECTED_S = 60.0  # far less than the hours that TCP itself would take
TOTAL = 30_000
PACED = {"pause_ms": "100", "total": str(TOTAL)}  # a quarter of a minute
SETTINGS = {
    "execution.checkpointing.interval": "50 ms",
    "heartbeat.interval": "200 ms",
    "heartbeat.timeout": "1 s",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}
DRIVER, SLOT_0, SLOT_1 = range(3)
CUTS = {
    "a slot from the driver": [(DRIVER, SLOT_0), (SLOT_0, DRIVER)],
    "a slot from a slot": [(SLOT_0, SLOT_1), (SLOT_1, SLOT_0)],
    "a slot from the driver, one way": [(SLOT_1, DRIVER)],
    "a slot from a slot, one way": [(SLOT_1, SLOT_0)],
}


@pytest.fixture
def network() -> Iterator[EmulatedNetwork]:
    try:
        with emulated_network(3) as network:
            yield network
    except CannotHaveCluster as refusal:
        pytest.skip(f"No network of namespaces on this machine: {refusal}")


@pytest.mark.parametrize("cut", CUTS.values(), ids=list(CUTS))
def test_slots_of_a_partitioned_run_end_themselves_and_are_replaced(
    tmp_path: Path, network: EmulatedNetwork, cut: list[tuple[int, int]]
) -> None:
    with running_on(network, tmp_path) as run:
        run.wait_for(lambda _: len(run.completed()) >= 3, STEP_S)
        of_attempt_1 = [psutil.Process(run.pid_of(slot)) for slot in (0, 1)]
        network.cut(*((network.addresses[a], network.addresses[b]) for a, b in cut))
        run.wait_for(lambda _: len(run.of(FailureOccurred)) > 0, DETECTED_S)
        for slot in of_attempt_1:
            assert_gone(slot)
        network.heal()
        run.wait_for(lambda _: is_running(run), STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert run.of(SlotConnected)[-1].attempt >= 2
    assert_exact(tmp_path / "output", TOTAL)


def test_a_slow_network_that_loses_packets_only_delays_the_run(
    tmp_path: Path, network: EmulatedNetwork
) -> None:
    patient = {"heartbeat.timeout": "10 s"}
    with running_on(network, tmp_path, patient) as run:
        run.wait_for(lambda _: len(run.completed()) >= 1, STEP_S)
        network.degrade(Link(delay_s=0.2, loss=0.01))
        slow_from = len(run.completed()) + 1
        run.wait_for(lambda _: len(run.completed()) >= slow_from + 2, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    durations = durations_ms(run)[slow_from:]
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert min(durations) >= 400, "a barrier and its acknowledgement take 200 ms each"
    assert run.of(FailureOccurred) == []
    assert_exact(tmp_path / "output", TOTAL)


def running_on(
    network: EmulatedNetwork, root: Path, settings: dict[str, str] | None = None
) -> AbstractContextManager[StartedRun]:
    reached = {"jobmanager.rpc.address": network.addresses[DRIVER]}
    return hosted_run(
        root,
        PACED,
        settings=SETTINGS | reached | (settings or {}),
        environment=network.environment,
    )


def durations_ms(run: StartedRun) -> list[int]:
    """Returns the time of each completed checkpoint from its trigger to its completion."""
    began = {e.event.checkpoint_id: e.at_ms for e in run.of(CheckpointTriggered)}  # type: ignore[attr-defined]
    return [e.at_ms - began[e.event.checkpoint_id] for e in run.of(CheckpointCompleted)]  # type: ignore[attr-defined]


def is_running(run: StartedRun) -> bool:
    newest = run.of(JobStatusChanged)[-1].event
    return isinstance(newest, JobStatusChanged) and newest.status is JobStatus.RUNNING


def assert_gone(process: psutil.Process) -> None:
    deadline = time.monotonic() + DETECTED_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"{process} lives on"
        time.sleep(0.02)
