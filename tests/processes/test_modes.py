"""The modes, told apart by what a crash leaves: the same input, the same kill, other counts."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import FailureOccurred, SubtaskAcknowledged
from pipelines.domain.ids import RequestId
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.numbers import committed
from tests.processes.relay import Balance, balance

pytestmark = pytest.mark.slow

STEP_S = 30.0
TOTAL = 6_000
SKEWED = {"lag_ms": "80", "slow_ms": "0"}
RELAY = {"pipeline": "relay"}
SOONER = {"execution.checkpointing.interval": "100 ms"}
UNALIGNED = {**SOONER, "execution.checkpointing.unaligned.enabled": "true"}
PATIENT = {**UNALIGNED, "execution.checkpointing.aligned-checkpoint-timeout": "20 ms"}
AT_MOST_ONCE = {**SOONER, "execution.checkpointing.mode": "AT_MOST_ONCE"}
AT_LEAST_ONCE = {**SOONER, "execution.checkpointing.mode": "AT_LEAST_ONCE"}


@pytest.mark.parametrize("settings", [SOONER, UNALIGNED, PATIENT])
def test_exactly_once_loses_nothing_and_doubles_nothing(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    run_and_kill(tmp_path, settings, SKEWED)

    assert balance(tmp_path / "output", TOTAL) == Balance(lost=0, doubled=0)


def test_at_least_once_loses_nothing_and_doubles_some(tmp_path: Path) -> None:
    """Whether a kill finds records taken from behind a barrier is chance, so it has a few."""
    doubled = 0
    for number in range(4):
        root = tmp_path / str(number)
        run_and_kill(root, AT_LEAST_ONCE, SKEWED)
        counts = balance(root / "output", TOTAL)
        assert counts.lost == 0
        doubled += counts.doubled
        if doubled:
            break
    assert doubled > 0


def test_at_most_once_doubles_nothing_and_loses_some(tmp_path: Path) -> None:
    run_and_kill(tmp_path, AT_MOST_ONCE, SKEWED)

    counts = balance(tmp_path / "output", TOTAL)
    assert counts.doubled == 0
    assert 0 < counts.lost < TOTAL


@pytest.mark.parametrize("parallelism", [1, 3])
def test_records_in_flight_are_restored_at_another_parallelism(
    tmp_path: Path, parallelism: int
) -> None:
    parameters = {"slow_ms": "20", "lag_ms": "10"}
    with hosted_run(tmp_path, parameters, settings=UNALIGNED, asked=RELAY) as run:
        run.wait_for(lambda _: has_kept_records_in_flight(run), STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(10)
        newest = run.completed()[-1].path

    with hosted_run(
        tmp_path,
        {"slow_ms": "0"},
        settings=SOONER,
        parallelism=parallelism,
        restore_from=newest,
        asked=RELAY,
    ) as restored:
        ended = restored.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert balance(tmp_path / "output", TOTAL) == Balance(lost=0, doubled=0)


@pytest.mark.parametrize("drain", [True, False])
def test_draining_fires_the_open_windows_before_the_savepoint(tmp_path: Path, drain: bool) -> None:
    paced = {"hours_per_s": "1", "total": "7200"}
    with hosted_run(tmp_path, paced, settings=SOONER) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        identity = {"request_id": RequestId("stop"), "requested_by": "test", "reason": "a test"}
        submit(run.directory, StopWithSavepoint(drain=drain, **identity))  # type: ignore[arg-type]
        ended = run.wait_until_over(STEP_S)
        read = run.completed()[-1].source_records

    assert ended.status is JobStatus.FINISHED
    assert 0 < read < 7200
    visible = int(committed(tmp_path / "output")["count"].sum())
    assert (visible == read) == drain, "without draining the open windows wait in the savepoint"
    assert visible <= read


def test_checkpoints_go_on_after_some_sources_have_finished(tmp_path: Path) -> None:
    with hosted_run(tmp_path, SKEWED, settings=SOONER, asked=RELAY) as run:
        ended = run.wait_until_over(STEP_S)

    half = TOTAL // 2
    after_the_fast_half = [e for e in run.completed() if e.source_records >= half + TOTAL // 6]
    assert ended.status is JobStatus.FINISHED
    assert len(after_the_fast_half) >= 3, "the fast source has read all of its half by then"
    assert balance(tmp_path / "output", TOTAL) == Balance(lost=0, doubled=0)


def run_and_kill(root: Path, settings: dict[str, str], parameters: dict[str, str]) -> None:
    """Kills a slot after a checkpoint whose barriers came far apart; then the run may end."""
    with hosted_run(root, parameters, settings=settings, asked=RELAY) as run:
        run.wait_for(lambda _: newest_spread_ms(run) >= 50, STEP_S)
        os.kill(run.pid_of(0), signal.SIGKILL)
        ended = run.wait_until_over(STEP_S)
    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 1


def newest_spread_ms(run: StartedRun) -> float:
    """How much later the slow source's barrier came than the fast one's, in the newest completed
    checkpoint: so long did records from behind a barrier arrive at a reader that was not done."""
    newest = run.completed()[-1].checkpoint_id if run.completed() else None
    acknowledged = [envelope.event for envelope in run.of(SubtaskAcknowledged)]
    spreads = (
        slow.arrived_ms - fast.arrived_ms
        for event in acknowledged
        if isinstance(event, SubtaskAcknowledged) and event.checkpoint_id == newest
        if len(event.phases.channels) == 2
        for fast, slow in [sorted(event.phases.channels, key=lambda one: one.channel)]
    )
    return max(spreads, default=0.0)


def has_kept_records_in_flight(run: StartedRun) -> bool:
    """A completed checkpoint holds some, on inputs."""
    completed = {event.checkpoint_id for event in run.completed()}
    acknowledged = [e.event for e in run.of(SubtaskAcknowledged)]
    return any(
        event.checkpoint_id in completed and event.phases.persisted_bytes > 0
        for event in acknowledged
        if isinstance(event, SubtaskAcknowledged)
    )
