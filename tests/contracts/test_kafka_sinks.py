"""The contract of sinks on a real Kafka: all of it but the rewinding, for its log keeps everything.

Run as a program, this file is one life of a `Host` that ends by SIGKILL.
"""

import os
import signal
import subprocess
import sys
from itertools import chain, count
from pathlib import Path

import pytest

from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import CheckpointId, RunId
from tests.brokers.kafka_broker import KafkaBroker
from tests.contracts.kafka_sinks import KINDS, PARTITIONS, RunningReader, kafka_target
from tests.contracts.sink_host import EVERYTHING, SEAMS, Host, Killed, records
from tests.contracts.sink_targets import Target, opened

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
BIRTH, OTHER = RunId("run-1"), RunId("run-2")
NUMBERS = count()


@pytest.fixture(params=KINDS)
def target(kafka_server: KafkaBroker, request: pytest.FixtureRequest) -> Target:
    topic = f"output-{next(NUMBERS)}"
    kafka_server.create_topic(topic, PARTITIONS)
    return kafka_target(kafka_server.bootstrap_servers, topic, kind=request.param)


@pytest.mark.parametrize(
    ("seam", "parallelism"), list(zip(SEAMS, [1, 2, 3, 1, 3, 2], strict=True)), ids=SEAMS
)
def test_output_is_exact_wherever_the_writers_are_abandoned(
    target: Target, tmp_path: Path, seam: str, parallelism: int
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam, interval=20, dies_at=2)

    host.live(BIRTH, parallelism=parallelism, interval=30)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize(
    ("kind", "seam"),
    [
        ("transactions", "while writing"),
        ("transactions", "all prepared"),
        ("transactions", "one subtask committed"),
        ("log", "one subtask committed"),
    ],
)
def test_output_is_exact_wherever_the_process_is_killed(
    kafka_server: KafkaBroker, tmp_path: Path, kind: str, seam: str
) -> None:
    topic = f"killed-{next(NUMBERS)}"
    kafka_server.create_topic(topic, PARTITIONS)
    address = kafka_server.bootstrap_servers
    killed = subprocess.run(
        [sys.executable, __file__, kind, address, topic, str(tmp_path), seam],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    target = kafka_target(address, topic, kind=kind)

    Host(tmp_path, target.sink).live(BIRTH, interval=30)

    assert killed.returncode == -signal.SIGKILL
    assert target.visible() == EVERYTHING


def test_output_is_exact_after_dying_at_every_seam_in_turn(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    for seam in SEAMS:
        with pytest.raises(Killed):
            host.live(BIRTH, seam=seam, parallelism=1, interval=3, dies_at=2)

    host.live(BIRTH, interval=30)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_runs_all_the_time_gets_each_record_once_and_in_order(
    kafka_server: KafkaBroker, tmp_path: Path, kind: str
) -> None:
    topic = f"read-{next(NUMBERS)}"
    kafka_server.create_topic(topic, PARTITIONS)
    address = kafka_server.bootstrap_servers
    host = Host(tmp_path, kafka_target(address, topic, kind=kind).sink)

    with RunningReader(address, topic) as reader:
        for seam in ("while writing", "all prepared", "complete"):
            with pytest.raises(Killed):
                host.live(BIRTH, seam=seam, parallelism=1, interval=10, dies_at=2)
        host.live(BIRTH, parallelism=1, interval=15)
        reader.wait_for(len(EVERYTHING))

    assert all(ids == sorted(ids) for ids in reader.ids.values())
    assert sorted(chain(*reader.ids.values())) == EVERYTHING


def test_an_aborted_checkpoint_is_committed_with_the_next_one(
    target: Target, tmp_path: Path
) -> None:
    Host(tmp_path, target.sink).live(BIRTH, aborted=(2, 3), interval=15, parallelism=1)

    assert target.visible() == EVERYTHING


def test_restoring_into_another_run_loses_nothing_and_leaves_nothing_open(
    target: Target, tmp_path: Path
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam="one subtask committed", interval=20, dies_at=2)

    host.live(OTHER, restore=host.newest(BIRTH), parallelism=3, interval=15)

    assert target.visible() == EVERYTHING


def test_a_commit_may_be_repeated(target: Target) -> None:
    writer = opened(target, BIRTH, 1)
    writer.write(records([1, 2]))
    committables = writer.prepare(CheckpointId(1))
    writer.commit(CheckpointId(1), committables)

    writer.commit(CheckpointId(1), committables)

    assert target.visible() == [1, 2]


def test_what_was_written_but_not_prepared_is_dropped_by_the_next_attempt(
    target: Target,
) -> None:
    abandoned = opened(target, BIRTH, 1)
    abandoned.write(records([1, 2]))
    target.sink.rewind([], BIRTH)

    writer = opened(target, BIRTH, 2)
    writer.commit(CheckpointId(1), writer.prepare(CheckpointId(1)))

    assert target.visible() == []


def test_an_interval_without_records_prepares_nothing(target: Target) -> None:
    writer = opened(target, BIRTH, 1)

    assert writer.prepare(CheckpointId(1)) == []


@pytest.mark.parametrize("newcomer", [(BIRTH, 2), (OTHER, 1)])
def test_a_writer_that_was_replaced_is_refused_and_changes_nothing(
    target: Target, newcomer: tuple[RunId, int]
) -> None:
    zombie = opened(target, BIRTH, 1)
    zombie.write(records([1]))
    target.sink.rewind([], newcomer[0])
    writer = opened(target, *newcomer)
    writer.write(records([2]))
    writer.commit(CheckpointId(2), writer.prepare(CheckpointId(2)))

    with pytest.raises(ProtocolError, match="may not write"):
        zombie.commit(CheckpointId(1), zombie.prepare(CheckpointId(1)))

    assert target.visible() == [2]


def test_a_replaced_attempt_cannot_open_again(target: Target) -> None:
    opened(target, BIRTH, 2)

    with pytest.raises(ProtocolError, match="may not write"):
        opened(target, BIRTH, 1)


def main() -> None:
    kind, address, topic, home, seam = sys.argv[1:]
    host = Host(
        Path(home),
        kafka_target(address, topic, kind=kind).sink,
        die=lambda: os.kill(os.getpid(), signal.SIGKILL),
    )
    host.live(BIRTH, seam=seam, interval=20, dies_at=2)


if __name__ == "__main__":
    main()
