"""The modes, told apart by what a crash leaves: the same input, the same kill, other counts.

Everything happens in an order that the test dictates: the slow split's barrier comes when the test
says so, long after the fast split's one, and behind that barrier a hundred records wait.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import ChangeSettings, TriggerCheckpoint
from pipelines.domain.events import CheckpointTriggered, FailureOccurred, SubtaskAcknowledged
from pipelines.domain.ids import RequestId
from pipelines.domain.phases import ChannelAlignment, SubtaskPhases
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.numbers import KEYS
from tests.processes.relay import Balance, balance
from tests.processes.scripted import (
    BEFORE,
    BEHIND,
    BEHIND_IS_SENT,
    FAST,
    FAST_WAITS,
    GO_ON,
    LAST,
    READ_SLOW,
    RELAY,
    SEEN,
    SEND_BEHIND,
    SLOW,
    SLOW_WAITS,
    SPLIT,
)

pytestmark = pytest.mark.slow

STEP_S = 20.0
TOTAL = 2 * LAST
EXACT = Balance(lost=0, doubled=0)
CHECKPOINTING = "execution.checkpointing."
BY_HAND = {CHECKPOINTING + "interval": "2 h", CHECKPOINTING + "min-pause": "1 h"}
UNALIGNED = {CHECKPOINTING + "unaligned.enabled": "true"}
TIMEOUT_MS = 300
PATIENT = {**UNALIGNED, CHECKPOINTING + "aligned-checkpoint-timeout": f"{TIMEOUT_MS} ms"}


def test_at_most_once_what_a_crash_catches_on_its_way_is_lost_and_nothing_is_doubled(
    tmp_path: Path,
) -> None:
    with scripted(tmp_path, mode("AT_MOST_ONCE")) as script:
        script.until_barriers_can_come()
        script.trigger()
        script.tell(READ_SLOW)
        script.until_completed()
        on_its_way = {*BEFORE[FAST], *BEFORE[SLOW]}
        script.until_seen(on_its_way)
        counts = script.crash()

    assert counts == Balance(lost=len(on_its_way), doubled=0)


def test_at_least_once_what_passed_between_the_barriers_is_doubled_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with scripted(tmp_path, mode("AT_LEAST_ONCE")) as script:
        script.until_between_the_barriers()
        script.until_seen(BEHIND)
        counts = script.until_over()
        aligned = [one for phases in script.relays() for one in phases.channels]

    assert counts == Balance(lost=0, doubled=len(BEHIND))
    assert not any(channel.blocked_ms for channel in aligned), "nobody was held back"


def test_aligned_what_comes_between_the_barriers_is_held_back(tmp_path: Path) -> None:
    with scripted(tmp_path, mode("EXACTLY_ONCE")) as script:
        script.until_between_the_barriers()
        assert not script.seen(BEHIND)
        counts = script.until_over()
        fast, slow = script.channels_of_slot_0()
        relays = script.relays()

    assert counts == EXACT
    assert fast.buffered_records > 0
    assert slow.buffered_records == 0
    assert not any(one.is_unaligned or one.persisted_bytes for one in relays)


def test_unaligned_barriers_overtake_and_what_they_overtook_is_kept_and_taken_in_again(
    tmp_path: Path,
) -> None:
    with scripted(tmp_path, UNALIGNED, relay_waits=True) as script:
        script.until_between_the_barriers()
        assert not script.seen(BEFORE[FAST]), "all of it is in work or queued in front of it"
        script.tell(RELAY)
        script.until_seen(BEHIND)
        counts = script.until_over()
        fast, slow = script.channels_of_slot_0()
        again = [number for number in script.seen(BEFORE[FAST]) if script.times_seen(number) > 1]

    assert counts == EXACT
    assert all(phases.is_unaligned for phases in script.relays())
    assert fast.persisted_records > 0
    assert slow.persisted_records > 0
    assert script.is_in_order(), "what was in flight came before anything new"
    assert len(again) >= fast.persisted_records, (
        "the source had read them: they come from the point"
    )


def test_a_barrier_that_aligns_for_too_long_begins_to_overtake(tmp_path: Path) -> None:
    with scripted(tmp_path, PATIENT) as script:
        script.until_between_the_barriers()
        script.until_seen(BEHIND)
        held_back_ms = script.seen(BEHIND)[BEHIND.start] - script.triggered_ms()
        counts = script.until_over()
        fast, slow = script.channels_of_slot_0()

    assert counts == EXACT
    assert all(phases.is_unaligned for phases in script.relays())
    assert held_back_ms >= TIMEOUT_MS - 50, "it began by aligning"
    assert fast.persisted_records == 0, "and had taken all that came before the barrier"
    assert slow.persisted_records > 0


def mode(name: str) -> dict[str, str]:
    return {CHECKPOINTING + "mode": name}


@contextmanager
def scripted(
    root: Path, settings: dict[str, str], *, relay_waits: bool = False
) -> Iterator["Script"]:
    """The slow split's last hundred, and everything behind the barriers, wait for the test."""
    directory = root / "script"
    directory.mkdir()
    if not relay_waits:
        (directory / RELAY).touch()
    with hosted_run(
        root,
        {"script": str(directory)},
        settings=BY_HAND | settings,
        asked={"pipeline": "scripted"},
    ) as run:
        yield Script(run, directory, root / "output")


@dataclass
class Script:
    """Checkpoint 1, step by step, and the crash behind it."""

    run: StartedRun
    directory: Path
    output: Path

    def tell(self, what: str) -> None:
        (self.directory / what).touch()

    def until(self, *said: str) -> None:
        self.run.wait_for(lambda _: all((self.directory / s).exists() for s in said), STEP_S)

    def seen(self, numbers: range | set[int]) -> dict[int, int]:
        """Which of them the relay has seen, and when for the first time."""
        first: dict[int, int] = {}
        for number, at_ms in self._log():
            if number in numbers:
                first.setdefault(number, at_ms)
        return first

    def times_seen(self, number: int) -> int:
        return sum(seen == number for seen, _ in self._log())

    def _log(self) -> list[tuple[int, int]]:
        log = self.directory / SEEN
        lines = log.read_text().splitlines() if log.exists() else []
        return [(int(number), int(at_ms)) for number, at_ms in map(str.split, lines)]

    def is_in_order(self) -> bool:
        """Of each key and split, by when the relay saw each number for the last time."""
        last = {number: place for place, (number, _) in enumerate(self._log())}
        lanes: dict[tuple[int, int], list[int]] = {}
        for number in sorted(last, key=last.__getitem__):
            lanes.setdefault((number // SPLIT, number % KEYS), []).append(number)
        return all(lane == sorted(lane) for lane in lanes.values())

    def until_seen(self, numbers: range | set[int]) -> None:
        self.run.wait_for(lambda _: len(self.seen(numbers)) == len(numbers), STEP_S)

    def trigger(self) -> None:
        identity = {"request_id": RequestId("one"), "requested_by": "test", "reason": "a test"}
        submit(self.run.directory, TriggerCheckpoint(**identity))  # type: ignore[arg-type]

    def until_barriers_can_come(self) -> None:
        self.until(FAST_WAITS, SLOW_WAITS)

    def until_between_the_barriers(self) -> None:
        """The fast split's barrier is out, with records behind it; the slow one's is not."""
        self.until_barriers_can_come()
        if (self.directory / RELAY).exists():
            self.until_seen({*BEFORE[FAST], *range(BEFORE[SLOW].start, BEFORE[SLOW].start + 100)})
        self.trigger()
        self.run.wait_for(lambda _: bool(self.phases("numbers")), STEP_S)
        self.tell(SEND_BEHIND)
        self.until(BEHIND_IS_SENT)

    def until_over(self) -> Balance:
        self.tell(READ_SLOW)
        self.until_completed()
        self.until_seen({*BEHIND, *BEFORE[SLOW]})
        return self.crash()

    def until_completed(self) -> None:
        self.run.wait_for(lambda _: len(self.run.completed()) == 1, STEP_S)

    def crash(self) -> Balance:
        """A slot dies; then the run may go on to its end."""
        os.kill(self.run.pid_of(0), signal.SIGKILL)
        self.run.wait_for(lambda _: bool(self.run.of(FailureOccurred)), STEP_S)
        often = {CHECKPOINTING + "interval": "50 ms", CHECKPOINTING + "min-pause": "0"}
        identity = {"request_id": RequestId("two"), "requested_by": "test", "reason": "a test"}
        submit(self.run.directory, ChangeSettings(settings=often, **identity))  # type: ignore[arg-type]
        self.tell(SEND_BEHIND)
        self.tell(GO_ON)
        ended = self.run.wait_until_over(STEP_S)
        assert ended.status is JobStatus.FINISHED
        assert len(self.run.of(FailureOccurred)) == 1
        return balance(self.output, TOTAL)

    def phases(self, vertex: str) -> list[SubtaskPhases]:
        """Of checkpoint 1."""
        events = [envelope.event for envelope in self.run.of(SubtaskAcknowledged)]
        return [
            event.phases
            for event in events
            if isinstance(event, SubtaskAcknowledged)
            and (event.checkpoint_id, event.phases.vertex) == (1, vertex)
        ]

    def relays(self) -> list[SubtaskPhases]:
        return self.phases("relay")

    def channels_of_slot_0(self) -> list[ChannelAlignment]:
        """From the fast split and from the slow one."""
        [relay] = [phases for phases in self.relays() if phases.subtask == 0]
        return sorted(relay.channels, key=lambda channel: channel.channel)

    def triggered_ms(self) -> int:
        return self.run.of(CheckpointTriggered)[0].at_ms
