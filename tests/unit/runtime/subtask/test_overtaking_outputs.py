"""A barrier overtakes the records that wait at the writer at once, in time, or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput
from pipelines.domain.elements import Barrier
from pipelines.domain.ids import CheckpointId, Uid, channel_id
from pipelines.runtime.subtask.mailbox import CheckpointAborted, InjectBarrier
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.runtime.fakes import ListSource, batch_of, keys_of
from tests.unit.runtime.hosted import (
    ALIGNED,
    LEFT,
    OVERTAKING,
    ReadingSubtask,
    ScriptedMailbox,
)

CHANNEL = channel_id(Uid(LEFT), 0, Uid("both"), 0, 0)
PATIENT = replace(OVERTAKING, aligned_timeout_ms=100)


def test_an_overtaking_barrier_stores_the_records_waiting_at_its_writer(tmp_path: Path) -> None:
    host, gate = full_writer(tmp_path, OVERTAKING)

    inject(host, Barrier(checkpoint_id=CheckpointId(1), trigger_ms=host.clock.wall_ms()))

    assert kept_by(host, tmp_path) == [2, 3]
    polled = [gate.poll(), gate.poll()]
    assert polled[1] == (
        CHANNEL,
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=1000, overtakes=True),
    )


def test_an_aligned_barrier_stores_no_records_and_waits_for_its_turn(tmp_path: Path) -> None:
    host, _ = full_writer(tmp_path, ALIGNED)

    inject(host, Barrier(checkpoint_id=CheckpointId(1), trigger_ms=host.clock.wall_ms()))

    assert kept_by(host, tmp_path) == []
    assert host.output.holds_barrier(CheckpointId(1))


@pytest.mark.parametrize("kind", [{"is_savepoint": True}, {"is_final": True}])
def test_savepoints_and_final_checkpoints_never_overtake(
    tmp_path: Path, kind: dict[str, bool]
) -> None:
    host, _ = full_writer(tmp_path, OVERTAKING)

    inject(host, Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, **kind))  # type: ignore[arg-type]

    assert kept_by(host, tmp_path) == []
    assert host.output.holds_barrier(CheckpointId(1))


def test_a_barrier_that_waits_too_long_at_the_writer_starts_to_overtake(tmp_path: Path) -> None:
    host, _ = full_writer(tmp_path, PATIENT)

    inject(host, Barrier(checkpoint_id=CheckpointId(1), trigger_ms=host.clock.wall_ms()))
    assert host.reporter.snapshots == {}, "it may still be passed on in time"
    host.clock.now_ms += 100
    host.subtask.run()

    assert kept_by(host, tmp_path) == [2, 3]
    assert host.reporter.phases[1].is_unaligned


def test_a_barrier_that_passes_in_time_stores_no_records_in_flight(tmp_path: Path) -> None:
    host, gate = full_writer(tmp_path, PATIENT)

    inject(host, Barrier(checkpoint_id=CheckpointId(1), trigger_ms=host.clock.wall_ms()))
    for _ in range(3):
        gate.poll()
        host.output.flush()
    host.subtask.run()

    assert kept_by(host, tmp_path) == []
    assert not host.reporter.phases[1].is_unaligned


def test_a_checkpoint_given_up_while_it_waits_at_the_writer_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    host, _ = full_writer(tmp_path, PATIENT)

    inject(host, Barrier(checkpoint_id=CheckpointId(1), trigger_ms=host.clock.wall_ms()))
    host.mailbox.post(CheckpointAborted(CheckpointId(1)))
    host.clock.now_ms += 100
    host.subtask.run()

    assert host.reporter.snapshots == {}


def full_writer(root: Path, options: object) -> tuple[ReadingSubtask, Gate]:
    """Returns a writer of three records whose channel took one and has no credit for the rest."""
    gate, output = Gate([CHANNEL], capacity_bytes=1), LocalOutput(CHANNEL)
    output.on_gate(gate)
    host = ReadingSubtask(
        root,
        ListSource([]),
        output=output,
        mailbox=ScriptedMailbox(),
        options=options,  # type: ignore[arg-type]
    )
    for key in (1, 2, 3):
        host.subtask.chain.emit_from_source(batch_of([(key, key)]))
    return host, gate


def inject(host: ReadingSubtask, barrier: Barrier) -> None:
    host.mailbox.post(InjectBarrier(barrier))
    host.subtask.run()  # until there is nothing to do


def kept_by(host: ReadingSubtask, root: Path) -> list[int]:
    location = host.reporter.location_of(CheckpointId(1))
    store = FileSystemCheckpointStore([str(root)])
    (snapshot,) = host.reporter.snapshots.values()
    assert all(h.is_output and h.channel == CHANNEL for h in snapshot.in_flight)
    return [
        key
        for handle in snapshot.in_flight
        for batch in store.read_batches(location, handle.file)
        for key in keys_of(batch)
    ]
