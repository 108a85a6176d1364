"""A crash leaves different results in each mode: same input and kill, other counts.

The test dictates the order of everything. The slow split's barrier comes when the test says so,
long after the fast split's one, and a hundred records wait behind that barrier.
"""

from pathlib import Path

import pytest

from tests.processes.relay import Balance
from tests.processes.scripted import BEFORE, BEHIND, FAST, READ_SLOW, RELAY, SLOW
from tests.processes.scripted_run import CHECKPOINTING, EXACT, scripted

pytestmark = pytest.mark.slow

UNALIGNED = {CHECKPOINTING + "unaligned.enabled": "true"}
TIMEOUT_MS = 300
PATIENT = {**UNALIGNED, CHECKPOINTING + "aligned-checkpoint-timeout": f"{TIMEOUT_MS} ms"}


def test_at_most_once_loses_records_in_flight_at_a_crash_and_doubles_none(
    tmp_path: Path,
) -> None:
    """The first record asks for checkpoint 1, which reserves what was read by then.

    Those records then reach the relay, and no later checkpoint has them. So all of them are lost,
    and nothing behind them.
    """
    with scripted(tmp_path, mode("AT_MOST_ONCE")) as script:
        script.until_barriers_can_come()
        script.tell(READ_SLOW)
        script.until_completed()
        on_its_way = {*BEFORE[FAST], *BEFORE[SLOW]}
        script.until_seen(on_its_way)
        counts = script.crash()
        [completed] = script.run.completed()[:1]

    assert completed.checkpoint_id == 1
    assert counts == Balance(lost=len(on_its_way), doubled=0)


def test_at_least_once_doubles_records_between_the_barriers_and_loses_none(
    tmp_path: Path,
) -> None:
    with scripted(tmp_path, mode("AT_LEAST_ONCE")) as script:
        script.until_between_the_barriers()
        script.until_seen(BEHIND)
        counts = script.until_over()
        aligned = [one for phases in script.relays() for one in phases.channels]

    assert counts == Balance(lost=0, doubled=len(BEHIND))
    assert not any(channel.blocked_ms for channel in aligned), "nobody was held back"


def test_aligned_mode_holds_back_records_between_the_barriers(tmp_path: Path) -> None:
    with scripted(tmp_path, mode("EXACTLY_ONCE")) as script:
        script.until_between_the_barriers()
        assert not script.seen(BEHIND)
        counts = script.until_over()
        fast, slow = script.channels_of(0)
        relays = script.relays()

    assert counts == EXACT
    assert fast.buffered_records > 0
    assert slow.buffered_records == 0
    assert not any(one.is_unaligned or one.persisted_bytes for one in relays)


def test_unaligned_barriers_persist_overtaken_records_for_the_restore(
    tmp_path: Path,
) -> None:
    with scripted(tmp_path, UNALIGNED, relay_waits=True) as script:
        script.until_between_the_barriers()
        assert not script.seen(BEFORE[FAST]), "all of it is in work or queued in front of it"
        script.tell(RELAY)
        script.until_seen(BEHIND)
        counts = script.until_over()
        fast, slow = script.channels_of(0)
        again = [number for number in script.seen(BEFORE[FAST]) if script.times_seen(number) > 1]

    assert counts == EXACT
    assert all(phases.is_unaligned for phases in script.relays())
    assert fast.persisted_records > 0
    assert slow.persisted_records > 0
    assert script.is_in_order(), "what was in flight came before anything new"
    assert len(again) >= fast.persisted_records, (
        "the source had read them: they come from the point"
    )


def test_a_barrier_starts_to_overtake_after_the_alignment_timeout(tmp_path: Path) -> None:
    with scripted(tmp_path, PATIENT) as script:
        script.until_between_the_barriers()
        script.until_seen(BEHIND)
        held_back_ms = script.seen(BEHIND)[BEHIND.start] - script.triggered_ms()
        counts = script.until_over()
        fast, slow = script.channels_of(0)

    assert counts == EXACT
    assert all(phases.is_unaligned for phases in script.relays())
    assert held_back_ms >= TIMEOUT_MS - 50, "it began by aligning"
    assert fast.persisted_records == 0, "and had taken all that came before the barrier"
    assert slow.persisted_records > 0


def mode(name: str) -> dict[str, str]:
    return {CHECKPOINTING + "mode": name}
