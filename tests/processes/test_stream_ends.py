"""How a stream ends, and how records in flight are restored at another parallelism."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.ids import RequestId
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.numbers import HELD_AT, committed
from tests.processes.relay import Balance, balance

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 6_000
RELAY = {"pipeline": "relay"}
SOONER = {"execution.checkpointing.interval": "100 ms"}
UNALIGNED = {**SOONER, "execution.checkpointing.unaligned.enabled": "true"}


@pytest.mark.parametrize(("parallelism", "edge"), [(1, "key"), (3, "key"), (3, "rebalance")])
def test_records_in_flight_are_restored_at_another_parallelism(
    tmp_path: Path, parallelism: int, edge: str
) -> None:
    parameters = {"slow_ms": "20", "lag_ms": "10", "edge": edge}
    with hosted_run(tmp_path, parameters, settings=UNALIGNED, spec_fields=RELAY) as run:
        run.wait_for(lambda _: bool(with_records_in_flight(run)), STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        newest = with_records_in_flight(run)[-1]

    with hosted_run(
        tmp_path,
        {"slow_ms": "0", "edge": edge},
        settings=SOONER,
        parallelism=parallelism,
        restore_from=newest,
        spec_fields=RELAY,
    ) as restored:
        ended = restored.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert balance(tmp_path / "output", TOTAL) == Balance(lost=0, doubled=0)


@pytest.mark.parametrize("drain", [True, False])
def test_draining_fires_the_open_windows_before_the_savepoint(tmp_path: Path, drain: bool) -> None:
    with hosted_run(tmp_path, {"held_at": str(HELD_AT)}, settings=SOONER) as run:
        run.wait_until_cut_at(HELD_AT, STEP_S)
        identity = {"request_id": RequestId("stop"), "requested_by": "test", "reason": "a test"}
        submit(run.directory, StopWithSavepoint(drain=drain, **identity))  # type: ignore[arg-type]
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.completed()[-1].source_records == HELD_AT
    visible = int(committed(tmp_path / "output")["count"].sum())
    assert (visible == HELD_AT) == drain, "without draining the open window waits in the savepoint"
    assert visible <= HELD_AT


def with_records_in_flight(run: StartedRun) -> list[str]:
    """Returns the completed checkpoints with records in flight, the newest last."""
    return [event.path for event in run.completed() if event.persisted_bytes > 0]
