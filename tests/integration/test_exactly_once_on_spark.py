"""flight_delays on real Spark: under every fault, its output equals that of a batch query.

The demonstration's own check, `test_demo_check.py`, has three more cases: a slot killed while it
aligns, a killed driver, and a savepoint restored at another parallelism.
"""

import os
import signal
from pathlib import Path

import psutil
import pytest

from pipelines.domain.events import (
    CheckpointTriggered,
    FailureOccurred,
    RestorePointRefused,
)
from pipelines.domain.faults import PERMISSION, FaultPoint
from pipelines.domain.status import JobStatus
from tests.certificates import Authority
from tests.commit_share import share_of
from tests.driven_run import StartedRun, started_run
from tests.flight_runs import (
    ENDLESS,
    PACED,
    SOONER,
    STEP_S,
    assert_output_is_exact,
    parameters_for,
)
from tests.object_server import ObjectServer, never
from tests.processes.fault_points import CHECKPOINT_POINTS, RESTORE_POINTS
from tests.stopped_processes import stopped_slot, wait_until_gone

pytestmark = [pytest.mark.slow, pytest.mark.spark]

EXECUTOR = "CoarseGrainedExecutorBackend"
SHARE = 3
"""One point in so many."""


def test_a_killed_slot_recovers_from_an_object_store_with_tls_everywhere(
    flights: Path, tmp_path: Path, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = objects.new_root()
    objects.plan(never)
    files = Authority(tmp_path / "tls").issued()
    machine = {
        "FTDASH_STORAGE_ROOTS": root,
        "FTDASH_TLS_CERTIFICATE_FILE": files.certificate,
        "FTDASH_TLS_KEY_FILE": files.key,
        "FTDASH_TLS_CA_FILE": files.authority,
    }
    for name, value in (objects.environment | machine).items():
        monkeypatch.setenv(name, value)
    encrypted = {"security.ssl.internal.enabled": "true"}
    settings = {**SOONER, **encrypted, "execution.checkpointing.dir": root}
    parameters = parameters_for(flights, tmp_path, speed=PACED)

    with started_run(tmp_path, "flight_delays", parameters, settings=settings) as run:
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(2, STEP_S)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert all(point.path.startswith(f"{root}/") for point in run.completed())
    assert not list(tmp_path.rglob("manifest.json"))
    assert_output_is_exact(flights, tmp_path)


@pytest.mark.parametrize(
    "points", [CHECKPOINT_POINTS, RESTORE_POINTS], ids=["of a checkpoint", "of a restore"]
)
def test_on_a_cluster_killed_slots_and_executors_change_nothing(
    flights: Path, tmp_path: Path, points: tuple[FaultPoint, ...]
) -> None:
    """First a slot is killed.

    In each later attempt, a slot stops at one of the points, and its executors are killed with it.
    The commit chooses the points; each costs an attempt on a cluster, and `test_kill_matrix` has
    all of them.
    """
    stops = dict(enumerate(share_of(points, SHARE), start=2))  # by attempt
    faults = [f"stop {stop} slot=1 attempt={attempt}" for attempt, stop in stops.items()]
    parameters = parameters_for(flights, tmp_path, speed=PACED)

    with started_run(
        tmp_path,
        "flight_delays",
        parameters,
        master="local-cluster[2,2,1024]",
        settings={**SOONER, "testing.faults": "; ".join(faults)},
        environment={PERMISSION: "1"},
    ) as run:
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        for attempt in stops:
            slot = stopped_slot(run, 1, attempt=attempt, within_s=STEP_S)
            executor_of(slot).kill()
            wait_until_gone(slot, STEP_S)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(FailureOccurred)[0].event.slot == 1  # type: ignore[attr-defined]
    assert [e.attempt for e in run.of(FailureOccurred)] == [1, *stops]
    assert_output_is_exact(flights, tmp_path)


def test_an_older_point_is_restored_and_later_output_does_not_double(
    flights: Path, tmp_path: Path
) -> None:
    paced = parameters_for(flights, tmp_path, speed=ENDLESS)
    many = {**SOONER, "execution.checkpointing.num-retained": "100"}
    with started_run(tmp_path, "flight_delays", paced, settings=many) as run:
        run.wait_for_more(6, STEP_S)
        older = run.completed()[2].path

    unpaced = parameters_for(flights, tmp_path, speed="max")
    with started_run(tmp_path, "flight_delays", unpaced, restore_from=older) as restored:
        restored.wait_until_over(STEP_S)

    assert_output_is_exact(flights, tmp_path)


def test_a_killed_driver_is_replaced_and_a_corrupted_newest_checkpoint_is_not_restored(
    flights: Path, tmp_path: Path
) -> None:
    paced = parameters_for(flights, tmp_path, speed=PACED)
    with started_run(tmp_path, "flight_delays", paced, settings=SOONER) as run:
        run.wait_for_more(4, STEP_S)
        newest = held_behind_a_checkpoint_with_state(run)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        run_id = run.directory.run_id
    damaged = flip_a_byte(newest)

    with started_run(tmp_path, "flight_delays", paced, run_id=run_id) as successor:
        ended = successor.wait_until_over(STEP_S)

    refused = [e.event for e in successor.of(RestorePointRefused)]
    ids = [e.event.checkpoint_id for e in successor.of(CheckpointTriggered)]  # type: ignore[attr-defined]
    assert [str(damaged) in event.message for event in refused] == [True]  # type: ignore[attr-defined]
    assert ids == sorted(set(ids)), "no id is used twice, by either driver"
    assert ended.status is JobStatus.FINISHED
    assert_output_is_exact(flights, tmp_path)


@pytest.mark.parametrize(
    ("parameters", "settings", "said"),
    [
        ({"speed": "fast"}, {}, "speed"),
        ({"data": "/nowhere/at/all"}, {}, "/nowhere/at/all"),
        ({}, {"execution.checkpointing.intervall": "1 s"}, "execution.checkpointing.interval"),
    ],
)
def test_bad_input_ends_the_run_with_one_sentence_that_names_it(
    flights: Path,
    tmp_path: Path,
    parameters: dict[str, str],
    settings: dict[str, str],
    said: str,
) -> None:
    given = {**parameters_for(flights, tmp_path, speed="max"), **parameters}

    with started_run(tmp_path, "flight_delays", given, settings=settings) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert said in ended.reason
    assert len(ended.reason.splitlines()) == 1


def executor_of(slot: psutil.Process) -> psutil.Process:
    return next(p for p in slot.parents() if EXECUTOR in " ".join(p.cmdline()))


def held_behind_a_checkpoint_with_state(run: StartedRun) -> Path:
    """Stops the driver behind its newest checkpoint that has state.

    A checkpoint has none where no record waits for a partner.
    """
    while True:
        os.kill(run.process.pid, signal.SIGSTOP)
        newest = Path(run.completed()[-1].path)
        if any(newest.glob("*.arrow")):
            return newest
        os.kill(run.process.pid, signal.SIGCONT)
        run.wait_for_more(1, STEP_S)


def flip_a_byte(point: Path) -> Path:
    path = max(point.glob("*.arrow"), key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    return path
