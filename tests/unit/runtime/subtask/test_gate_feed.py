"""A subtask behind a gate: its snapshots, the records that wait meanwhile, and its end."""

import random
import traceback
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pipelines.domain.elements import (
    Barrier,
    Element,
    EndOfInput,
    Records,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.subtask.feed import PassTime, Process
from pipelines.runtime.subtask.gate_alignment import STEPS_MAX
from pipelines.runtime.subtask.mailbox import CheckpointAborted, CheckpointCompleted
from tests.unit.runtime.fakes import batch_of, keys_of
from tests.unit.runtime.hosted import (
    COUNTED,
    LEFT,
    RIGHT,
    JoiningSubtask,
    LaterExecutor,
    WaitsForEver,
)
from tests.unit.runtime.permits import permit

SIDES = (LEFT, RIGHT)


@pytest.mark.parametrize("coalesced_rows", [1, 5, 8_192])
@pytest.mark.parametrize("seed", range(25))
def test_a_snapshot_holds_exactly_the_records_before_its_barrier_on_each_channel(
    seed: int, coalesced_rows: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    host = JoiningSubtask(tmp_path, coalesced_rows=coalesced_rows)
    streams = {LEFT: random_stream(chance, 0), RIGHT: random_stream(chance, 1000)}

    unsent = {side: list(stream) for side, stream in streams.items()}
    while unsent[LEFT] or unsent[RIGHT]:
        side = chance.choice([side for side in SIDES if unsent[side]])
        host.inputs[side].send(unsent[side].pop(0))
        for _ in range(chance.randint(0, 2)):
            host.advance()
    host.consume()

    assert sorted(host.reporter.snapshots) == [1, 2, 3]
    for checkpoint_id in (1, 2, 3):
        before = [key for s in streams.values() for key in keys_before(s, checkpoint_id)]
        assert sorted(host.seen_at(checkpoint_id)) == sorted(before)
    everything = [key for s in streams.values() for key in keys_before(s, None)]
    assert sorted(host.sink.written) == sorted(everything)


def test_at_least_once_no_channel_waits_and_a_snapshot_holds_extra_records(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path, options=COUNTED)

    host.inputs[LEFT].send(barrier(1))
    host.inputs[LEFT].send(records(1, 2))
    host.consume()
    passed_on = list(host.sink.written)
    host.inputs[RIGHT].send(records(3))
    host.inputs[RIGHT].send(barrier(1))
    host.consume()

    assert passed_on == [1, 2], "what stands behind the barrier goes on"
    assert sorted(host.seen_at(1)) == [1, 2, 3], "and is in the cut, so a replay doubles it"
    assert [channel.blocked_ms for channel in host.reporter.phases[1].channels] == [0, 0]


@pytest.mark.parametrize("coalesced_rows", [1, 5])
@pytest.mark.parametrize("seed", range(10))
def test_at_least_once_a_snapshot_holds_everything_before_its_barriers(
    seed: int, coalesced_rows: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    host = JoiningSubtask(tmp_path, options=COUNTED, coalesced_rows=coalesced_rows)
    streams = {LEFT: random_stream(chance, 0), RIGHT: random_stream(chance, 1000)}

    unsent = {side: list(stream) for side, stream in streams.items()}
    while unsent[LEFT] or unsent[RIGHT]:
        side = chance.choice([side for side in SIDES if unsent[side]])
        host.inputs[side].send(unsent[side].pop(0))
        for _ in range(chance.randint(0, 2)):
            host.advance()
    host.consume()

    assert sorted(host.reporter.snapshots) == [1, 2, 3]
    for checkpoint_id in (1, 2, 3):
        before = {key for s in streams.values() for key in keys_before(s, checkpoint_id)}
        assert before <= set(host.seen_at(checkpoint_id))


def test_an_idle_channel_does_not_hold_back_event_time(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    host.inputs[LEFT].send(Watermark(9))
    host.consume()
    assert host.subtask.watermark_ms() is None

    host.inputs[RIGHT].send(WatermarkStatus(is_idle=True))
    host.consume()

    assert host.subtask.watermark_ms() == 9


def test_records_reach_the_port_of_their_channel(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)

    host.inputs[LEFT].send(records(1, 2, 3))
    host.inputs[RIGHT].send(records(4))
    host.consume()

    counted = {"both.port_0": 3, "both.port_1": 1, "out.records_written": 4}
    assert host.subtask.chain.counters == counted


def test_a_channel_behind_its_barrier_waits_while_the_other_delivers(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path)

    host.inputs[LEFT].send(barrier(1))
    host.inputs[LEFT].send(records(1, 2))
    host.inputs[RIGHT].send(records(3))
    host.consume()

    assert host.sink.written == [3]
    assert queued(host) == {LEFT: (2, True), RIGHT: (0, False)}
    assert host.reporter.snapshots == {}


def test_records_behind_a_barrier_are_counted_per_channel_then_delivered(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path)
    host.inputs[LEFT].send(barrier(1))
    host.inputs[LEFT].send(records(1, 2))
    host.consume()

    host.clock.now_ms += 40
    host.inputs[RIGHT].send(records(3))
    host.inputs[RIGHT].send(barrier(1))
    host.consume()

    phases = host.reporter.phases[1]
    left, right = phases.channels
    assert (left.channel, right.channel) == (host.channels[LEFT], host.channels[RIGHT])
    assert (left.buffered_records, right.buffered_records) == (2, 0)
    assert left.buffered_bytes > right.buffered_bytes == 0
    assert (left.blocked_ms, right.blocked_ms, phases.alignment_ms) == (40, 0, 40)
    assert host.seen_at(1) == [3]
    assert host.sink.written == [3, 1, 2]


def test_the_records_held_back_are_measured_at_each_arrival(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    triggered = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=host.clock.wall_ms())
    host.clock.now_ms += 10
    for element in (records(0), triggered, records(1), Watermark(3)):
        host.inputs[LEFT].send(element)
    host.consume()

    host.clock.now_ms += 20
    host.inputs[LEFT].send(Watermark(4))
    host.inputs[LEFT].send(records(2, 3))
    host.clock.now_ms += 5
    host.inputs[RIGHT].send(triggered)
    host.consume()

    left, right = host.reporter.phases[1].channels
    assert [(step.at_ms, step.records) for step in left.steps] == [(10, 1), (30, 3)]
    assert (left.steps[-1].size_bytes, left.blocked_ms) == (left.buffered_bytes, 25)
    assert [(step.at_ms, step.records) for step in right.steps] == [(35, 0)]


def test_an_alignment_does_not_count_records_of_an_older_one(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)

    for number in (1, 2):
        host.inputs[LEFT].send(barrier(number))
        host.consume()
        host.inputs[LEFT].send(records(*range(number)))
        host.inputs[RIGHT].send(barrier(number))
        host.consume()

    left, _ = host.reporter.phases[2].channels
    assert [step.records for step in left.steps] == [0, 2]


def test_a_bounded_sample_of_steps_keeps_the_first_and_the_last(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)

    host.inputs[LEFT].send(barrier(1))
    host.consume()
    for number in range(1000):
        host.inputs[LEFT].send(records(number))
    host.inputs[RIGHT].send(barrier(1))
    host.consume()

    left, _ = host.reporter.phases[1].channels
    kept = [step.records for step in left.steps]
    assert len(kept) == STEPS_MAX
    assert (kept[0], kept[-1]) == (0, 1000)
    assert {b - a for a, b in pairwise(kept)} <= {66, 67}


def test_arrivals_are_measured_from_the_trigger(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    triggered = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=host.clock.wall_ms())

    for side, passed_ms in ((RIGHT, 5), (LEFT, 7)):
        host.clock.now_ms += passed_ms
        host.inputs[side].send(triggered)
        host.consume()

    phases = host.reporter.phases[1]
    assert phases.start_delay_ms == 5
    assert [channel.arrived_ms for channel in phases.channels] == [5, 12]


def test_an_aborted_checkpoint_opens_its_channels_and_leaves_no_snapshot(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    host.inputs[LEFT].send(barrier(1))
    host.inputs[LEFT].send(records(1))
    host.consume()

    host.subtask.obey(host.feed.on_aborted(CheckpointId(1)))
    host.inputs[RIGHT].send(barrier(1))
    host.inputs[RIGHT].send(records(2))
    host.consume()

    assert sorted(host.sink.written) == [1, 2]
    assert host.reporter.snapshots == {}


def test_the_checkpoint_after_an_aborted_one_is_exact(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    host.inputs[LEFT].send(barrier(1))
    host.inputs[LEFT].send(records(1))
    host.consume()

    host.subtask.obey(host.feed.on_aborted(CheckpointId(1)))
    for element in (barrier(1), records(2), barrier(2), records(3)):
        host.inputs[RIGHT].send(element)
    host.inputs[LEFT].send(barrier(2))
    host.consume()

    assert sorted(host.seen_at(2)) == [1, 2]
    assert sorted(host.sink.written) == [1, 2, 3]


def test_alignment_does_not_wait_for_a_channel_that_has_ended(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    host.inputs[LEFT].send(barrier(1))
    host.inputs[LEFT].send(records(1))

    host.inputs[RIGHT].send(records(2))
    host.inputs[RIGHT].send(EndOfInput())
    host.consume()

    assert host.seen_at(1) == [2]
    assert host.sink.written == [2, 1]


def test_records_are_processed_before_the_watermark_that_follows_them(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path, coalesced_rows=5)
    for side in SIDES:
        host.inputs[side].send(records(1))
        host.inputs[side].send(Watermark(7))

    asked = [type(effect) for _ in SIDES for effect in host.feed.advance() or []]

    assert asked == [Process, Process, PassTime], "event time waits for the other side"


def test_a_barrier_is_never_injected_behind_a_gate(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)

    with pytest.raises(InvariantViolated, match="sources only"):
        host.feed.on_injected(barrier(1))


@pytest.mark.parametrize("completion_comes_first", [True, False])
def test_a_subtask_ends_after_end_of_input_and_the_final_checkpoint(
    completion_comes_first: bool, tmp_path: Path
) -> None:
    host = JoiningSubtask(tmp_path)
    committed: list[list[int]] = []

    last_steps = [
        lambda: host.mailbox.post(CheckpointCompleted(permit(1))),
        lambda: send_to_both(host, EndOfInput()),
    ]
    host.run(
        lambda: send_to_both(host, records(1, 2)),
        lambda: send_to_both(host, barrier(1, is_final=True)),
        lambda: committed.append(list(host.sink.committed)),
        *(last_steps if completion_comes_first else reversed(last_steps)),
    )

    assert host.reporter.failures == []
    assert host.reporter.has_ended
    assert (committed, host.sink.committed) == ([[]], [1, 2, 1, 2])
    assert host.reporter.commits == [1]


def test_a_subtask_outlives_a_completed_checkpoint_that_is_not_final(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)

    host.run(
        lambda: send_to_both(host, barrier(1)),
        lambda: host.mailbox.post(CheckpointCompleted(permit(1))),
        lambda: send_to_both(host, records(1)),
        lambda: send_to_both(host, barrier(2)),
    )

    assert waits_for_ever(host)
    assert host.seen_at(2) == [1, 1]


@pytest.mark.parametrize(("attempt", "committed"), [(1, [1, 1]), (2, [])])
def test_a_sink_commits_only_with_a_permit_of_its_own_attempt(
    tmp_path: Path, attempt: int, committed: list[int]
) -> None:
    host = JoiningSubtask(tmp_path)

    host.run(
        lambda: send_to_both(host, records(1)),
        lambda: send_to_both(host, barrier(1)),
        lambda: host.mailbox.post(CheckpointCompleted(permit(1, attempt))),
    )

    (failure,) = host.reporter.failures
    assert isinstance(failure, InvariantViolated) == (attempt == 2)
    assert host.sink.committed == committed


def test_a_broken_rule_of_barriers_is_reported_with_the_events_that_led_to_it(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path, options=COUNTED)
    left, right = host.channels[LEFT], host.channels[RIGHT]

    host.run(
        lambda: send_to_both(host, barrier(1)),
        lambda: host.inputs[LEFT].send(barrier(2)),
        lambda: host.mailbox.post(CheckpointAborted(CheckpointId(7))),
        lambda: host.inputs[LEFT].send(barrier(2)),
    )

    (failure,) = host.reporter.failures
    assert isinstance(failure, InvariantViolated)
    assert failure.last_events == (
        f"barrier 1 of {left}",
        f"barrier 1 of {right}",
        f"barrier 2 of {left}",
        "abort of 7",
        f"barrier 2 of {left}",
    )
    assert f"abort of 7; barrier 2 of {left}" in "".join(traceback.format_exception(failure))


def test_an_older_savepoint_that_completes_last_does_not_keep_a_subtask_from_ending(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path)

    host.run(
        lambda: send_to_both(host, barrier(1)),
        lambda: send_to_both(host, barrier(2, is_final=True)),
        lambda: host.mailbox.post(CheckpointCompleted(permit(2))),
        lambda: host.mailbox.post(CheckpointCompleted(permit(1))),
        lambda: send_to_both(host, EndOfInput()),
    )

    assert host.reporter.has_ended


def test_an_upload_does_not_start_after_its_checkpoint_was_aborted(
    tmp_path: Path,
) -> None:
    uploads = LaterExecutor()
    host = JoiningSubtask(tmp_path, uploads=uploads)

    host.run(
        lambda: send_to_both(host, records(1)),
        lambda: send_to_both(host, barrier(1)),
        lambda: send_to_both(host, barrier(2)),
        lambda: host.mailbox.post(CheckpointAborted(CheckpointId(1))),
        uploads.run_all,
    )

    assert waits_for_ever(host)
    assert list(host.reporter.snapshots) == [2]
    assert host.reporter.declines == []
    assert not (tmp_path / "chk-1").exists()


def test_a_snapshot_is_written_to_the_location_in_its_barrier(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)
    place = tmp_path / "savepoints" / "before-the-move"

    host.run(
        lambda: send_to_both(host, records(1)),
        lambda: send_to_both(host, replace(barrier(1), location=str(place))),
    )

    assert waits_for_ever(host)
    assert list(host.reporter.snapshots) == [1]
    assert list(place.iterdir())
    assert not (tmp_path / "chk-1").exists()


def test_an_aborted_final_checkpoint_does_not_end_the_subtask(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)

    host.run(
        lambda: send_to_both(host, barrier(1, is_final=True)),
        lambda: host.mailbox.post(CheckpointAborted(CheckpointId(1))),
        lambda: send_to_both(host, barrier(2)),
        lambda: host.mailbox.post(CheckpointCompleted(permit(2))),
        lambda: send_to_both(host, EndOfInput()),
    )

    assert waits_for_ever(host)


def test_a_closed_gate_ends_a_subtask_silently(tmp_path: Path) -> None:
    host = JoiningSubtask(tmp_path)

    host.run(host.gate.close)

    assert (host.reporter.has_ended, host.reporter.failures) == (False, [])


def test_a_failed_snapshot_write_declines_only_its_own_checkpoint(
    tmp_path: Path,
) -> None:
    host = JoiningSubtask(tmp_path)
    (tmp_path / "chk-1").write_text("a file where a directory is to be made")

    send_to_both(host, records(1))
    send_to_both(host, barrier(1))
    send_to_both(host, barrier(2))
    host.consume()

    assert [checkpoint_id for checkpoint_id, _ in host.reporter.declines] == [1]
    assert host.seen_at(2) == [1, 1]


def random_stream(chance: random.Random, first_key: int) -> list[Element]:
    """Returns batches of 1 to 3 records with distinct keys, and barriers 1, 2 and 3 among them."""
    elements: list[Element] = []
    key = first_key
    for checkpoint_id in (1, 2, 3, None):
        for _ in range(chance.randint(0, 4)):
            end = key + chance.randint(1, 3)
            elements.append(records(*range(key, end)))
            key = end
        if checkpoint_id is not None:
            elements.append(barrier(checkpoint_id))
    return elements


def keys_before(stream: list[Element], checkpoint_id: int | None) -> list[int]:
    keys: list[int] = []
    for element in stream:
        if isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id:
            return keys
        if isinstance(element, Records):
            keys += keys_of(element.batch)
    return keys


def records(*keys: int) -> Records:
    return Records(batch_of([(key, key) for key in keys]))


def barrier(checkpoint_id: int, *, is_final: bool = False) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(checkpoint_id), trigger_ms=0, is_final=is_final)


def send_to_both(host: JoiningSubtask, element: Element) -> None:
    for output in host.inputs.values():
        output.send(element)


def waits_for_ever(host: JoiningSubtask) -> bool:
    (failure,) = host.reporter.failures
    return isinstance(failure, WaitsForEver) and not host.reporter.has_ended


def queued(host: JoiningSubtask) -> dict[str, tuple[int, bool]]:
    by_channel = {s.channel: (s.queued_records, s.held_back) for s in host.subtask.queued()}
    return {side: by_channel[channel] for side, channel in host.channels.items()}
