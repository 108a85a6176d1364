"""A journal in segments reads as one, even if a driver dies while it begins or deletes one."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.bus.inbox import Inbox, submit
from pipelines.bus.journal import (
    JournalShortened,
    JournalWriter,
    every_envelope,
    last_event,
    newest_event,
    read_journal,
)
from pipelines.bus.journal_segments import (
    REQUESTS_KEPT,
    ClosedSegment,
    Segment,
    closed_segments,
    delete_segments,
    envelopes_of,
    expendable,
    segments_of,
)
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import TriggerCheckpoint
from pipelines.domain.errors import InvariantViolated, Retryable
from pipelines.domain.events import (
    CheckpointFailed,
    CheckpointTriggered,
    Envelope,
    Event,
    FailureOccurred,
    JobStatusChanged,
    JournalContinued,
    RecordQuarantined,
    RecordsIsolated,
    RecoveryPhaseReached,
    RequestAccepted,
    RequestEnded,
    RunEnded,
    SettingsChanged,
    SlotConnected,
    SlotLost,
)
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.poison import IsolatedRange, PoisonRecord
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import CheckpointKind, JobStatus, RecoveryPhase, RequestOutcome
from tests.unit.storage.disks import STEPS_MAX, DurableDisk, Killed

FIRST = Attempt(1)
SMALL = 1_500
"""The bytes of a segment of about ten lines."""


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.of(tmp_path, "flights", RunId("r1"))


@pytest.mark.parametrize("seed", range(10))
def test_readers_of_segments_find_the_same_events_as_in_one_file(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Drivers come and go, and segments are deleted up to the reader that is furthest behind."""
    for sync in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, sync, lambda _: None)  # the power never fails here
    rng = random.Random(seed)
    told: list[Event] = []
    readers = [Reader(directory) for _ in range(2)]
    for _ in range(20):
        with writer(directory) as journal:
            for _ in range(rng.randint(0, 12)):
                told.append(any_event(rng, len(told)))
                journal.append(told[-1], FIRST)
        for reader in readers:
            reader.read(rng.randint(1, 3_000), rng.randint(0, 3))
        furthest_behind = min(reader.offset for reader in readers)
        closed = closed_segments(directory.journal_file)
        going = expendable(closed, furthest_behind, closed_before_s=1e12)
        delete_segments([each.segment for each in going])

        with writer(directory) as journal:
            for kind in (JobStatusChanged, SettingsChanged, CheckpointTriggered):
                assert journal.newest(kind) == newest_of(told, kind)
            for kind in (RecordsIsolated, RecordQuarantined):
                assert journal.every(kind) == all_of(told, kind)
            answers = all_of(told, RequestEnded)[-REQUESTS_KEPT:]
            assert journal.every(RequestEnded)[-len(answers) :] == answers
        assert newest_slots(directory) == connected(told)

    for reader in readers:
        reader.read(10_000)
        assert reader.told() == told
        assert [each.sequence for each in reader.found] == list(range(1, len(reader.found) + 1))
    assert len(all_of(readers[0].found, Envelope)) > len(told), "there were segments"


@pytest.mark.slow
@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_crash_at_any_step_of_a_segment_switch_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    told = [status(n) for n in range(12)]
    for step in range(1, STEPS_MAX):
        directory = RunDirectory.of(tmp_path / str(step), "flights", RunId("r1"))
        written: list[Event] = []
        with writer(directory, segment_bytes=1_000) as journal:
            tell(journal, told[:6], written)
        reader = Reader(directory).read(10_000, 1)
        disk = JournalDisk(monkeypatch, directory.path)

        was_killed = disk.kill_at(
            step,
            lambda: tell(writer(directory, segment_bytes=1_000), told[6:], written),  # noqa: B023
        )
        if power == "fails":
            disk.lose_power()

        with writer(directory, segment_bytes=1_000) as journal:
            tell(journal, [status(99)], [])
            assert journal.newest(JobStatusChanged) == status(99)
        found = list(every_envelope(directory.journal_file))
        assert [each.sequence for each in found] == list(range(1, len(found) + 1))
        events = [e.event for e in found if not isinstance(e.event, JournalContinued)]
        at_most = told[: len(written) + 1]  # no caller learned that the last one is there
        assert events in ([*written, status(99)], [*at_most, status(99)])
        assert reader.read(10_000).told() == events
        shutil.rmtree(tmp_path / str(step))
        if not was_killed:
            assert "link" in disk.calls, "a segment began"
            return
    pytest.fail("some lines take a bounded number of steps")


@pytest.mark.slow
def test_a_disk_error_at_any_step_of_a_segment_switch_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer refuses the lines that the disk did not take; the others are there once each."""
    for step in range(1, STEPS_MAX):
        directory = RunDirectory.of(tmp_path / str(step), "flights", RunId("r1"))
        written: list[Event] = []
        with writer(directory, segment_bytes=1_000) as journal:
            tell(journal, [status(n) for n in range(6)], written)
        disk = JournalDisk(monkeypatch, directory.path)

        journal = writer(directory, segment_bytes=1_000)
        error = disk.fail_at(
            step,
            errno.ENOSPC,
            lambda: tell(journal, [status(n) for n in range(6, 12)], written),  # noqa: B023
        )
        journal.close()

        with writer(directory, segment_bytes=1_000) as journal:
            tell(journal, [status(99)], written)
        found = list(every_envelope(directory.journal_file))
        assert [e.event for e in found if not isinstance(e.event, JournalContinued)] == written
        assert [each.sequence for each in found] == list(range(1, len(found) + 1))
        is_litter = disk.failed_call == "unlink"  # a leftover name ends the driver
        assert error is None or isinstance(error, Retryable) or is_litter
        if disk.failed_call is None:
            return
    pytest.fail("some lines take a bounded number of steps")


def test_a_segment_is_durable_before_the_next_one_begins(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a loss of power would leave a hole between the segments."""
    steps: list[str] = []
    link, sync = os.link, os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (steps.append("sync"), sync(file)))
    monkeypatch.setattr(os, "link", lambda *names: (steps.append("begin"), link(*names)))
    with writer(directory, segment_bytes=100) as journal:
        journal.append(lost(1), FIRST)
        journal.append(lost(2), FIRST)

    assert steps == ["sync", "begin"]


def test_a_journal_from_before_segments_continues_in_segments(
    directory: RunDirectory,
) -> None:
    with writer(directory, segment_bytes=1 << 30) as journal:
        told = [any_event(random.Random(n), n) for n in range(100)]
        tell(journal, told, [])
    reader = Reader(directory).read(1_000, 3)

    with writer(directory) as journal:
        tell(journal, [status(1), status(2)], told)

    assert len(segments_of(directory.journal_file)) == 2
    assert reader.read(10_000).told() == told


def test_a_new_driver_reads_only_the_newest_segment(directory: RunDirectory) -> None:
    """This is so in a run of any length, even if no person ever changed its settings."""
    with writer(directory) as journal:
        journal.append(triggered(1), FIRST)
        while len(segments_of(directory.journal_file)) < 5:
            journal.append(lost(1), FIRST)
    for segment in segments_of(directory.journal_file)[:-1]:
        segment.path.write_bytes(b"{no event\n")

    with writer(directory) as journal:
        assert journal.newest(CheckpointTriggered) == triggered(1)
        assert journal.newest(SettingsChanged) is None
        assert journal.every(RecordsIsolated) == []


def test_a_command_answered_in_a_deleted_segment_is_not_offered_again(
    directory: RunDirectory,
) -> None:
    request = TriggerCheckpoint(request_id=RequestId("a"), requested_by="ann", reason="why")
    submit(directory, request)
    answer = RequestEnded(request_id=RequestId("a"), outcome=RequestOutcome.SUCCEEDED, message="")
    with writer(directory) as journal:
        journal.append(answer, FIRST)
        while len(segments_of(directory.journal_file)) < 3:
            journal.append(lost(1), FIRST)
    delete_segments([each.segment for each in closed_segments(directory.journal_file)])

    assert Inbox(directory).pending() == []


def test_all_segments_have_the_permissions_of_the_first(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        while len(segments_of(directory.journal_file)) < 3:
            journal.append(lost(1), FIRST)

    modes = {segment.path.stat().st_mode for segment in segments_of(directory.journal_file)}
    assert len(modes) == 1


def test_a_reader_behind_a_deleted_segment_learns_of_the_deletion(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
        _, offset = read_journal(directory.journal_file, 0)
        while len(segments_of(directory.journal_file)) < 3:
            journal.append(lost(1), FIRST)
    delete_segments([closed_segments(directory.journal_file)[0].segment])

    for place in (0, offset):
        with pytest.raises(JournalShortened, match=f"was deleted; it was read up to byte {place}"):
            read_journal(directory.journal_file, place)
    assert isinstance(next(every_envelope(directory.journal_file)).event, JournalContinued)


def test_a_missing_segment_is_reported_instead_of_waited_for(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        while len(segments_of(directory.journal_file)) < 3:
            journal.append(lost(1), FIRST)
    hole = segments_of(directory.journal_file)[1]
    hole.path.unlink()

    with pytest.raises(JournalShortened, match="has nothing from byte"):
        read_journal(directory.journal_file, hole.base)


def test_a_replaced_drivers_line_after_a_segments_end_is_never_read(
    directory: RunDirectory,
) -> None:
    with writer(directory) as journal:
        while len(segments_of(directory.journal_file)) < 2:
            journal.append(lost(1), FIRST)
    before = list(every_envelope(directory.journal_file))
    with directory.journal_file.open("ab") as late:
        late.write(directory.journal_file.read_bytes().splitlines(keepends=True)[-1])

    assert list(every_envelope(directory.journal_file)) == before


def test_a_replaced_driver_does_not_start_a_segment_over_an_existing_one(
    directory: RunDirectory,
) -> None:
    first = writer(directory, segment_bytes=100)
    first.append(lost(1), FIRST)
    with writer(directory, segment_bytes=100) as second:
        second.append(lost(2), FIRST)
        with pytest.raises(InvariantViolated, match="one writer"):
            first.append(lost(3), FIRST)
        second.append(lost(4), FIRST)

    assert told_in(directory) == [lost(1), lost(2), lost(4)]


def test_the_end_of_a_run_stays_its_last_event_when_the_segment_is_full(
    directory: RunDirectory,
) -> None:
    end = RunEnded(status=JobStatus.FINISHED, reason="done " * 100)
    with writer(directory, segment_bytes=100) as journal:
        journal.append(lost(1), FIRST)
        journal.append(end, FIRST)

    assert last_event(directory.journal_file) == end
    assert newest_event(directory.journal_file, RunEnded) == end


def test_a_segment_that_cannot_be_summarized_is_not_closed(directory: RunDirectory) -> None:
    """A line that this version cannot read stops the readers, not the run."""
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
    with directory.journal_file.open("ab") as file:
        file.write(b"{broken\n")
        file.write(directory.journal_file.read_bytes().splitlines(keepends=True)[0])

    with writer(directory, segment_bytes=100) as journal:
        for _ in range(10):
            journal.append(lost(3), FIRST)

    assert len(segments_of(directory.journal_file)) == 1


def test_a_new_segment_summarizes_only_what_is_still_under_way(directory: RunDirectory) -> None:
    failed = CheckpointFailed(
        checkpoint_id=CheckpointId(1), reason=CheckpointFailureReason.CHECKPOINT_EXPIRED, message=""
    )
    detected = RecoveryPhaseReached(phase=RecoveryPhase.DETECT, duration_ms=1.0)
    with writer(directory) as journal:
        tell(journal, [detected, triggered(1), triggered(2), triggered(3), failed], [])
        while len(segments_of(directory.journal_file)) < 4:
            journal.append(lost(1), FIRST)
    (*_, head) = (e.event for e in every_envelope(directory.journal_file) if is_head(e.event))

    assert [each.event for each in envelopes_of(head.under_way)] == [
        detected,
        triggered(2),
        triggered(3),
    ]


def test_a_finished_recovery_is_not_listed_as_under_way(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        for phase in RecoveryPhase:
            journal.append(RecoveryPhaseReached(phase=phase, duration_ms=1.0), FIRST)
        while len(segments_of(directory.journal_file)) < 3:
            journal.append(lost(1), FIRST)
    *_, head = (e.event for e in every_envelope(directory.journal_file) if is_head(e.event))

    assert head.under_way == []


@pytest.mark.parametrize("seed", range(50))
def test_segments_are_deleted_from_the_oldest_up_to_a_young_or_unread_one(seed: int) -> None:
    rng = random.Random(seed)
    ends = sorted(rng.sample(range(1, 100), rng.randint(0, 6)))
    closed = [
        ClosedSegment(Segment(base, Path(f"{base}")), end, rng.randint(0, 9))
        for base, end in zip([0, *ends], ends, strict=False)
    ]
    read_up_to, closed_before_s = rng.randint(0, 100), rng.randint(0, 10)

    going = expendable(closed, read_up_to, closed_before_s)

    stays = closed[len(going) :]
    assert closed == [*going, *stays], "from the oldest"
    for each in going:
        assert each.end <= read_up_to
        assert each.closed_s < closed_before_s
    for each in stays[:1]:
        assert each.end > read_up_to or each.closed_s >= closed_before_s


class Reader:
    """A reader that continues from its last position, as the projector does."""

    def __init__(self, directory: RunDirectory) -> None:
        self._path = directory.journal_file
        self.offset = 0
        self.found: list[Envelope] = []

    def read(self, bytes_max: int, times: int | None = None) -> "Reader":
        """Reads `times` times, or until nothing more comes if None."""
        before = -1
        while times != 0 and before != self.offset:
            times, before = None if times is None else times - 1, self.offset
            envelopes, self.offset = read_journal(self._path, self.offset, bytes_max)
            self.found += envelopes
        return self

    def told(self) -> list[Event]:
        return [each.event for each in self.found if not is_head(each.event)]


class JournalDisk(DurableDisk):
    """Counts the journal writer's calls as steps too, and keeps the files that exist already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        super().__init__(monkeypatch, root)
        for path in root.iterdir():
            self._contents[path.stat().st_ino] = path.read_bytes()

    def _run(self, act: Callable[[], object]) -> None:
        with self._monkeypatch.context() as patch:
            write, sync = os.write, os.fdatasync

            def write_some(file: int, content: bytes) -> int:
                try:
                    self._step("write")
                except Killed:
                    write(file, content[: len(content) // 2])
                    raise
                return write(file, content)

            def sync_content(file: int) -> None:
                self._step("fdatasync")
                sync(file)
                self._sync(file)

            patch.setattr(os, "write", write_some)
            patch.setattr(os, "fdatasync", sync_content)
            super()._run(act)


class FixedClock:
    def monotonic_ms(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1_000


def writer(directory: RunDirectory, segment_bytes: int = SMALL) -> JournalWriter:
    return JournalWriter(
        directory, RunId("r1"), FixedClock(), lambda *_: None, segment_bytes=segment_bytes
    )


def tell(journal: JournalWriter, events: list[Event], written: list[Event]) -> None:
    for event in events:
        journal.append(event, FIRST)
        written.append(event)


def told_in(directory: RunDirectory) -> list[Event]:
    events = [each.event for each in every_envelope(directory.journal_file)]
    return [event for event in events if not is_head(event)]


def is_head(event: Event) -> bool:
    return isinstance(event, JournalContinued)


def lost(slot: int) -> SlotLost:
    return SlotLost(slot=slot, pid=1, reason="gone")


def status(number: int) -> JobStatusChanged:
    return JobStatusChanged(status=JobStatus.RUNNING, reason=f"number {number}")


def triggered(number: int) -> CheckpointTriggered:
    return CheckpointTriggered(
        checkpoint_id=CheckpointId(number),
        kind=CheckpointKind.CHECKPOINT,
        trigger_ms=1,
        subtask_count=1,
    )


def any_event(rng: random.Random, number: int) -> Event:
    name = f"number {number}"
    isolated = IsolatedRange(
        source=Uid("s"), split="a", first_offset=number, last_offset=number, step=1
    )
    poison = PoisonRecord(
        source=Uid("s"),
        split="a",
        offset=number,
        operator=Uid("o"),
        error_type="ValueError",
        error=name,
        trace="",
    )
    answer = RequestEnded(
        request_id=RequestId(f"r{number}"), outcome=RequestOutcome.FAILED, message=name
    )
    changed = SettingsChanged(settings={}, changed={}, requested_by="ann", reason=name)
    rare = rng.random() < 0.05
    return rng.choice(
        [
            FailureOccurred(cause=name, detail="x" * rng.choice([1, 1, 3_000])),
            JobStatusChanged(status=rng.choice(list(JobStatus)), reason=name),
            SlotConnected(slot=rng.randint(0, 2), pid=number, host="here"),
            lost(rng.randint(0, 2)),
            triggered(number),
            answer,
            changed if rare else lost(0),
            RecordsIsolated(range=isolated) if rare else lost(1),
            RecordQuarantined(record=poison, directory="q", count=1, limit=9) if rare else lost(2),
        ]
    )


def all_of(events: list, kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def newest_of(events: list[Event], kind: type) -> Event | None:
    return next(iter(reversed(all_of(events, kind))), None)


def connected(told: list[Event]) -> dict[int, int]:
    slots: dict[int, int] = {}
    for event in told:
        if isinstance(event, SlotConnected):
            slots[event.slot] = event.pid
        elif isinstance(event, SlotLost):
            slots.pop(event.slot, None)
    return slots


def newest_slots(directory: RunDirectory) -> dict[int, int]:
    """Returns the slots that a reader finds if it reads only the newest segment."""
    newest = segments_of(directory.journal_file)[-1:]
    events: list[Event] = []
    for segment in newest:
        for envelope in read_journal(directory.journal_file, segment.base)[0]:
            event = envelope.event
            events += [e.event for e in envelopes_of(event.kept)] if is_head(event) else [event]
    return connected(events)


def test_a_command_accepted_in_a_deleted_segment_counts_as_taken_up(
    directory: RunDirectory,
) -> None:
    request = TriggerCheckpoint(request_id=RequestId("a"), requested_by="ann", reason="why")
    submit(directory, request)
    with writer(directory) as journal:
        journal.append(RequestAccepted(request_id=RequestId("a")), FIRST)
        while len(segments_of(directory.journal_file)) < 3:
            journal.append(lost(1), FIRST)
    delete_segments([each.segment for each in closed_segments(directory.journal_file)])

    assert Inbox(directory).was_taken_up(RequestId("a"))
