"""Steps a run of the flow `scripted` through its first checkpoint, and a crash after it."""

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.bus.inbox import submit
from pipelines.domain.checkpoint_failures import ChannelAlignment, SubtaskPhases
from pipelines.domain.commands import ChangeSettings, TriggerCheckpoint
from pipelines.domain.events import CheckpointTriggered, FailureOccurred, SubtaskAcknowledged
from pipelines.domain.ids import RequestId
from pipelines.domain.settings.resources import DEBLOATING
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

STEP_S = 60.0
CHECKPOINTING = "execution.checkpointing."
BY_HAND = {
    CHECKPOINTING + "interval": "2 h",
    CHECKPOINTING + "min-pause": "1 h",
    "pipeline.coalescing.max-rows": "1",  # one batch is in work, and the next ones are queued
    DEBLOATING + "enabled": "false",  # so that all of them are queued
}
EXACT = Balance(lost=0, doubled=0)


@contextmanager
def scripted(
    root: Path, settings: dict[str, str], *, relay_waits: bool = False
) -> Iterator["Script"]:
    """Runs the flow; the slow split's last hundred and all after the barriers wait for the test."""
    directory = root / "script"
    directory.mkdir()
    if not relay_waits:
        (directory / RELAY).touch()
    with hosted_run(
        root,
        {"script": str(directory)},
        settings=BY_HAND | settings,
        spec_fields={"pipeline": "scripted"},
    ) as run:
        yield Script(run, directory, root / "output")


@dataclass
class Script:
    """Checkpoint 1, step by step, and the crash after it."""

    run: StartedRun
    directory: Path
    output: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def tell(self, what: str) -> None:
        (self.directory / what).touch()

    def until(self, *said: str) -> None:
        self.run.wait_for(lambda _: all((self.directory / s).exists() for s in said), STEP_S)

    def seen(self, numbers: range | set[int]) -> dict[int, int]:
        """Returns when the relay first saw each of the numbers; unseen ones are missing."""
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
        """Returns True if the relay last saw the numbers of each key and split in order."""
        last = {number: place for place, (number, _) in enumerate(self._log())}
        lanes: dict[tuple[int, int], list[int]] = {}
        for number in sorted(last, key=last.__getitem__):
            lanes.setdefault((number // SPLIT, number % KEYS), []).append(number)
        return all(lane == sorted(lane) for lane in lanes.values())

    def until_seen(self, numbers: range | set[int]) -> None:
        self.run.wait_for(lambda _: len(self.seen(numbers)) == len(numbers), STEP_S)

    def trigger(self) -> None:
        submit(self.run.directory, TriggerCheckpoint(**self._identity()))  # type: ignore[arg-type]

    def until_barriers_can_come(self) -> None:
        self.until(FAST_WAITS, SLOW_WAITS)

    def until_between_the_barriers(self) -> None:
        """Waits until the fast split's barrier is out with records behind it, the slow's not."""
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
        """Kills a slot, then lets the run continue to its end."""
        os.kill(self.run.pid_of(0), signal.SIGKILL)
        self.run.wait_for(lambda _: bool(self.run.of(FailureOccurred)), STEP_S)
        often = {CHECKPOINTING + "interval": "50 ms", CHECKPOINTING + "min-pause": "0"}
        change = ChangeSettings(settings=often, **self._identity())  # type: ignore[arg-type]
        submit(self.run.directory, change)
        self.tell(SEND_BEHIND)
        self.tell(GO_ON)
        ended = self.run.wait_until_over(STEP_S)
        assert ended.status is JobStatus.FINISHED
        assert len(self.run.of(FailureOccurred)) == 1
        return balance(self.output, 2 * LAST)

    def phases(self, vertex: str) -> list[SubtaskPhases]:
        """Returns the phases of the vertex's subtasks in checkpoint 1."""
        events = [envelope.event for envelope in self.run.of(SubtaskAcknowledged)]
        return [
            event.phases
            for event in events
            if isinstance(event, SubtaskAcknowledged)
            and (event.checkpoint_id, event.phases.vertex) == (1, vertex)
        ]

    def relays(self) -> list[SubtaskPhases]:
        """Returns the relays' phases in checkpoint 1; asserts that there are some."""
        relays = self.phases("relay")
        assert relays, "no relay has acknowledged"
        return relays

    def relay(self, slot: int) -> SubtaskPhases:
        [relay] = [phases for phases in self.relays() if phases.subtask == slot]
        return relay

    def channels_of(self, slot: int) -> list[ChannelAlignment]:
        """Returns the channels from the fast split and from the slow one, in that order."""
        return sorted(self.relay(slot).channels, key=lambda channel: channel.channel)

    def triggered_ms(self) -> int:
        return self.run.of(CheckpointTriggered)[0].at_ms

    def _identity(self) -> dict[str, str]:
        request_id = RequestId(f"request-{next(self._numbers)}")
        return {"request_id": request_id, "requested_by": "test", "reason": "a test"}
