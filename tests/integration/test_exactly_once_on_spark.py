"""flight_delays on real Spark: under every fault, its output equals that of a batch query.

Each start of Spark costs many seconds of processor time, so each test is a story with several
faults. The demonstration's own check, `test_demo_check.py`, has three more cases: a slot killed
while it aligns, a killed driver, and a savepoint restored at another parallelism.
"""

import os
import signal
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from pipelines.bus.journal import read_journal
from pipelines.domain.events import (
    CheckpointTriggered,
    FailureOccurred,
    RestorePointRefused,
    RunEnded,
    SubtaskAcknowledged,
)
from pipelines.domain.faults import PERMISSION
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus
from pipelines.spark import driver
from tests.certificates import Authority
from tests.commit_share import share_of
from tests.concurrent_checkpoints import CONCURRENT, most_under_way
from tests.driven_run import StartedRun, started_run, written_spec
from tests.flight_runs import (
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
UNALIGNED = {
    **SOONER,
    "execution.checkpointing.unaligned.enabled": "true",
    "execution.checkpointing.num-retained": "100",
}


def test_on_a_cluster_with_tls_and_an_object_store_killed_slots_and_executors_change_nothing(
    flights: Path, tmp_path: Path, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First a slot is killed.

    In each later attempt, a slot stops at a point, and its executor is killed with it: first at a
    point of a checkpoint, then at one of a restore. The commit chooses both points, because each
    costs an attempt on a cluster; `test_kill_matrix` has all of them.
    """
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
    lists = (CHECKPOINT_POINTS, RESTORE_POINTS)
    chosen = [point for points in lists for point in share_of(points, len(points))]
    stops = dict(enumerate(chosen, start=2))  # by attempt
    faults = [f"stop {stop} slot=1 attempt={attempt}" for attempt, stop in stops.items()]
    settings = {
        **SOONER,
        "security.ssl.internal.enabled": "true",
        "execution.checkpointing.dir": root,
        "testing.faults": "; ".join(faults),
    }

    with started_run(
        tmp_path,
        "flight_delays",
        parameters_for(flights, tmp_path, speed=PACED),
        master="local-cluster[2,2,1024]",
        settings=settings,
        environment={PERMISSION: "1"},
    ) as run:
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        for attempt in stops:
            slot = stopped_slot(run, 1, attempt=attempt, within_s=STEP_S)
            assert_forked_with_what_it_needs(slot)
            executor_of(slot).kill()
            wait_until_gone(slot, STEP_S)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(FailureOccurred)[0].event.slot == 1  # type: ignore[attr-defined]
    assert [e.attempt for e in run.of(FailureOccurred)] == [1, *stops]
    assert run.completed()
    assert all(point.path.startswith(f"{root}/") for point in run.completed())
    assert not list(tmp_path.rglob("manifest.json"))
    assert_output_is_exact(flights, tmp_path)


def test_unaligned_an_older_point_is_restored_at_another_parallelism_and_output_does_not_double(
    flights: Path, tmp_path: Path
) -> None:
    """Before, a slot and the driver are killed, and later checkpoints have committed output."""
    paced = parameters_for(flights, tmp_path, speed=PACED)
    with started_run(tmp_path, "flight_delays", paced, settings=UNALIGNED) as run:
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(4, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        acknowledged = [envelope.event for envelope in run.of(SubtaskAcknowledged)]
        older = run.completed()[2].path
        assert len(run.of(FailureOccurred)) == 1
    phases = [e.phases for e in acknowledged if isinstance(e, SubtaskAcknowledged)]
    assert any(phase.is_unaligned for phase in phases)

    unpaced = parameters_for(flights, tmp_path, speed="max")
    with started_run(
        tmp_path,
        "flight_delays",
        unpaced,
        settings=UNALIGNED,
        parallelism=3,
        restore_from=older,
    ) as restored:
        ended = restored.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_output_is_exact(flights, tmp_path)


def test_with_concurrent_checkpoints_a_killed_slot_a_killed_driver_and_damage_change_nothing(
    flights: Path, tmp_path: Path
) -> None:
    """A successor replaces the driver, and does not restore the damaged newest checkpoint."""
    paced = parameters_for(flights, tmp_path, speed=PACED)
    with started_run(tmp_path, "flight_delays", paced, settings=CONCURRENT) as run:
        run.wait_for_more(3, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(4, STEP_S)
        run.wait_for(lambda _: most_under_way(run) == 3, STEP_S)
        newest = held_behind_a_checkpoint_with_state(run)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        run_id = run.directory.run_id
        assert len(run.of(FailureOccurred)) == 1
        assert most_under_way(run) == 3
    damaged = flip_a_byte(newest)
    unpace(run.directory)

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
    monkeypatch: pytest.MonkeyPatch,
    parameters: dict[str, str],
    settings: dict[str, str],
    said: str,
) -> None:
    """The driver refuses before it starts Spark, so it runs in this process."""
    given = {**parameters_for(flights, tmp_path, speed="max"), **parameters}
    run = written_spec(tmp_path, "flight_delays", given, settings=settings)
    monkeypatch.setattr(sys, "argv", ["driver", str(run.path)])

    status = driver.main()

    ended = read_journal(run.journal_file, 0)[0][-1].event
    assert status == driver.EXIT_FAILED
    assert isinstance(ended, RunEnded)
    assert ended.status is JobStatus.FAILED
    assert said in ended.reason
    assert len(ended.reason.splitlines()) == 1


def unpace(run: RunDirectory) -> None:
    """Makes the next driver read without a pace: the rest of the run proves no more if it waits."""
    spec = msgspec.json.decode(run.spec_file.read_bytes(), type=RunSpec)
    unpaced = msgspec.structs.replace(spec, parameters={**spec.parameters, "speed": "max"})
    run.spec_file.write_bytes(msgspec.json.encode(unpaced))


def assert_forked_with_what_it_needs(slot: psutil.Process) -> None:
    """Checks that its parent has loaded the run's pipeline, and none of those that need Kafka."""
    parent = slot.parent()
    assert parent is not None
    loaded = " ".join(library.path for library in parent.memory_maps())
    assert "/sqlalchemy/" in loaded
    assert "/pyarrow/_acero" in loaded
    assert "/confluent_kafka/" not in loaded


def executor_of(slot: psutil.Process) -> psutil.Process:
    return next(p for p in slot.parents() if EXECUTOR in " ".join(p.cmdline()))


def held_behind_a_checkpoint_with_state(run: StartedRun) -> Path:
    """Stops the driver behind its newest checkpoint that has state.

    A checkpoint has none where no record waits for a partner. A driver that is stopped may not have
    announced its newest manifest yet.
    """
    while True:
        os.kill(run.process.pid, signal.SIGSTOP)
        completed = Path(run.completed()[-1].path).parent.glob("*/manifest.json")
        newest = max(completed, key=lambda manifest: number_of(manifest.parent)).parent
        if any(newest.glob("*.arrow")):
            return newest
        os.kill(run.process.pid, signal.SIGCONT)
        run.wait_for_more(1, STEP_S)


def number_of(point: Path) -> int:
    return int(point.name.removeprefix("chk-"))


def flip_a_byte(point: Path) -> Path:
    path = max(point.glob("*.arrow"), key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    return path
