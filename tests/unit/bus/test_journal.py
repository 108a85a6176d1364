"""The journal: whole lines and no gaps, even if a writer dies at any point."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.bus.journal import (
    JournalCutShort,
    JournalWriter,
    UndecodableEvent,
    last_event,
    read_journal,
)
from pipelines.bus.lease import LeaseLost
from pipelines.domain.errors import Retryable
from pipelines.domain.events import (
    CheckpointTriggered,
    DriverReplaced,
    Event,
    FailureOccurred,
    JobStatusChanged,
    RequestAccepted,
    RunEnded,
    SlotLost,
)
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import CheckpointKind, JobStatus

FIRST = Attempt(1)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.of(tmp_path, "flights", RunId("r1"))


def test_appended_events_are_read_back_in_order(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        written = [journal.append(lost(slot), Attempt(slot)) for slot in range(1, 4)]

    envelopes, offset = read_journal(directory.journal_file, 0)

    assert envelopes == written
    assert [each.sequence for each in envelopes] == [1, 2, 3]
    assert read_journal(directory.journal_file, offset) == ([], offset)


def test_a_torn_last_line_is_cut_off_and_its_number_is_used_again(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
        journal.append(lost(2), FIRST)
    content = directory.journal_file.read_bytes()
    directory.journal_file.write_bytes(content[:-7])

    with writer(directory) as journal:
        journal.append(lost(3), FIRST)

    envelopes, _ = read_journal(directory.journal_file, 0)
    assert [(each.sequence, each.event) for each in envelopes] == [(1, lost(1)), (2, lost(3))]


@pytest.mark.parametrize(
    "told",
    [
        JobStatusChanged(status=JobStatus.RUNNING, reason=""),
        RequestAccepted(request_id=RequestId("kill")),  # no other driver may carry it out again
    ],
    ids=["a status", "a request"],
)
def test_only_decisive_events_are_synced_before_their_announcement(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, told: Event
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size))
    heard: list[tuple[int, int]] = []

    with JournalWriter(
        directory, RunId("r1"), FixedClock(), lambda _, number: heard.append((number, len(synced)))
    ) as journal:
        journal.append(lost(1), FIRST)
        journal.append(told, FIRST)
        size = directory.journal_file.stat().st_size

    assert heard == [(1, 0), (2, 1)]
    assert synced == [size], "with everything before it"


def test_a_decisive_line_that_cannot_be_synced_is_not_in_the_journal(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int) -> None:
        raise OSError("input/output error")

    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(Retryable, match="input/output error"):
            journal.append(JobStatusChanged(status=JobStatus.RUNNING, reason=""), FIRST)

    assert [each.event for each in read_journal(directory.journal_file, 0)[0]] == [lost(1)]


def test_a_reader_notices_that_lines_it_has_read_are_gone(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        for slot in (1, 2):
            journal.append(lost(slot), FIRST)
    _, offset = read_journal(directory.journal_file, 0)
    lines = directory.journal_file.read_bytes().splitlines(keepends=True)

    directory.journal_file.write_bytes(lines[0])

    with pytest.raises(JournalCutShort):
        read_journal(directory.journal_file, offset)


def test_a_reader_notices_that_the_journal_it_has_read_is_gone(directory: RunDirectory) -> None:
    assert read_journal(directory.journal_file, 0) == ([], 0)

    with pytest.raises(JournalCutShort, match="not there any more"):
        read_journal(directory.journal_file, 10)


def test_the_directories_of_a_journal_are_durable_before_its_first_line(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))

    with writer(directory):
        new = [directory.path, directory.path.parent, directory.path.parent.parent]
        assert synced[-1] == directory.path.stat().st_ino
        assert {path.stat().st_ino for path in new} <= set(synced)


def test_a_reader_waits_for_the_rest_of_an_unfinished_line(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
        journal.append(lost(2), FIRST)
    content = directory.journal_file.read_bytes()
    directory.journal_file.write_bytes(content[:-7])

    before, offset = read_journal(directory.journal_file, 0)
    directory.journal_file.write_bytes(content)
    after, _ = read_journal(directory.journal_file, offset)

    assert [each.sequence for each in before] == [1]
    assert [each.sequence for each in after] == [2]


@pytest.mark.parametrize("line", [b"{broken\n", b'{"sequence": 2}\n', b"\xff\xfe\n", b"\n"])
def test_an_unreadable_line_stops_the_reader_and_is_named(
    directory: RunDirectory, line: bytes
) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
    with directory.journal_file.open("ab") as file:
        file.write(line)

    good, offset = read_journal(directory.journal_file, 0)

    assert [each.sequence for each in good] == [1]
    with pytest.raises(UndecodableEvent, match=r"journal\.jsonl, line 2, cannot be read"):
        read_journal(directory.journal_file, offset)


def test_an_event_of_an_unknown_kind_stops_the_reader(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
    content = directory.journal_file.read_text()
    directory.journal_file.write_text(content.replace("SlotLost", "SlotFound"))

    with pytest.raises(UndecodableEvent, match="SlotFound"):
        read_journal(directory.journal_file, 0)


def test_many_threads_leave_no_gap_and_no_mixed_line(directory: RunDirectory) -> None:
    with JournalWriter(directory, RunId("r1"), YieldingClock(), lambda *_: None) as journal:
        threads = [
            threading.Thread(target=lambda: [journal.append(lost(7), FIRST) for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    envelopes, _ = read_journal(directory.journal_file, 0)

    assert [each.sequence for each in envelopes] == list(range(1, 201))


def test_a_line_longer_than_a_block_is_read_whole(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        journal.append(SlotLost(slot=0, pid=1, reason="x" * 1000), FIRST)
        journal.append(lost(1), FIRST)

    first, offset = read_journal(directory.journal_file, 0, bytes_max=100)
    second, _ = read_journal(directory.journal_file, offset, bytes_max=100)

    assert [each.sequence for each in (*first, *second)] == [1, 2]


def test_a_long_last_line_does_not_hide_the_next_sequence_number(
    directory: RunDirectory,
) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
        journal.append(SlotLost(slot=0, pid=1, reason="x" * 200_000), FIRST)

    with writer(directory) as journal:
        envelope = journal.append(lost(3), FIRST)

    assert envelope.sequence == 3


def test_a_full_disk_leaves_no_half_line(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
        with monkeypatch.context() as patched:
            patched.setattr("pipelines.bus.journal.os.write", takes_half)
            with pytest.raises(Retryable, match="r1"):
                journal.append(lost(2), FIRST)
        journal.append(lost(3), FIRST)

    envelopes, _ = read_journal(directory.journal_file, 0)
    assert [(each.sequence, each.event) for each in envelopes] == [(1, lost(1)), (2, lost(3))]


@pytest.mark.parametrize("moment", ["while it opens the journal", "while its disk takes a part"])
def test_a_late_driver_never_truncates_what_its_successor_wrote(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with writer(directory) as journal:
        journal.append(lost(1), FIRST)
    has_successor = moment == "while it opens the journal"

    def check_held() -> None:
        if has_successor:
            with writer(directory) as successor:
                successor.append(lost(2), FIRST)
            raise LeaseLost(directory, None)

    def takes_half_late(file: int, line: bytes) -> int:
        nonlocal has_successor
        has_successor = True
        monkeypatch.undo()
        return 0

    def write() -> None:
        with writer(directory, check_held) as late:
            monkeypatch.setattr("pipelines.bus.journal.os.write", takes_half_late)
            late.append(lost(9), FIRST)

    with pytest.raises(LeaseLost):
        write()

    envelopes, _ = read_journal(directory.journal_file, 0)
    assert [(each.sequence, each.event) for each in envelopes] == [(1, lost(1)), (2, lost(2))]


def test_the_silence_of_a_replaced_driver_counts_from_its_last_event(
    directory: RunDirectory,
) -> None:
    with writer(directory) as journal:
        journal.append(DriverReplaced(silent_ms=21_000.0), FIRST)

    with writer(directory) as journal:
        silent_ms = FixedClock().monotonic_ms() - journal.last_heard_ms

    assert silent_ms == 21_000.0


def test_every_append_is_announced_after_it_is_written(directory: RunDirectory) -> None:
    seen: list[tuple[str, int, int]] = []

    def announce(run_id: RunId, sequence: int) -> None:
        seen.append((run_id, sequence, len(read_journal(directory.journal_file, 0)[0])))

    with JournalWriter(directory, RunId("r1"), FixedClock(), announce) as journal:
        journal.append(lost(1), FIRST)
        journal.append(lost(2), FIRST)

    assert seen == [("r1", 1, 1), ("r1", 2, 2)]


def test_the_newest_event_of_a_kind_is_found_however_far_back_it_lies(
    directory: RunDirectory,
) -> None:
    noise = FailureOccurred(cause="CheckpointTriggered? " + "x" * 3_000)
    with writer(directory) as journal:
        assert journal.newest(CheckpointTriggered) is None
        for checkpoint_id in (1, 2):
            journal.append(triggered(checkpoint_id), Attempt(1))
        for _ in range(60):  # more than one read takes, and the text contains the kind
            journal.append(noise, Attempt(1))
    with writer(directory) as journal:
        found = journal.newest(CheckpointTriggered)
        journal.append(triggered(3), Attempt(2))

        assert found is not None
        assert found.checkpoint_id == 2
        assert journal.newest(CheckpointTriggered) == triggered(3)
        assert journal.newest(FailureOccurred) == noise


def test_every_event_of_a_kind_is_found_oldest_first(directory: RunDirectory) -> None:
    with writer(directory) as journal:
        for checkpoint_id in (1, 2, 3):
            journal.append(triggered(checkpoint_id), FIRST)
            journal.append(FailureOccurred(cause="CheckpointTriggered", detail="x" * 40_000), FIRST)

        assert journal.every(CheckpointTriggered) == [triggered(n) for n in (1, 2, 3)]
        assert journal.every(RunEnded) == []


def test_the_last_event_is_that_of_the_last_complete_line(directory: RunDirectory) -> None:
    assert last_event(directory.journal_file) is None
    with writer(directory) as journal:
        journal.append(JobStatusChanged(status=JobStatus.RUNNING), FIRST)
        journal.append(RunEnded(status=JobStatus.FINISHED, reason="done"), FIRST)
    with directory.journal_file.open("ab") as file:
        file.write(b'{"torn')

    assert last_event(directory.journal_file) == RunEnded(status=JobStatus.FINISHED, reason="done")


class FixedClock:
    def monotonic_ms(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1_000


class YieldingClock(FixedClock):
    """Lets another thread run between the choice of the number and the write of the line."""

    def wall_ms(self) -> int:
        os.sched_yield()
        return 1_000


def writer(directory: RunDirectory, check_held: Callable[[], None] = lambda: None) -> JournalWriter:
    clock, run_id = FixedClock(), RunId("r1")
    return JournalWriter(directory, run_id, clock, lambda run_id, sequence: None, check_held)


def lost(slot: int) -> SlotLost:
    return SlotLost(slot=slot, pid=1, reason="gone")


def takes_half(descriptor: int, content: bytes) -> int:
    import posix

    return posix.write(descriptor, content[: len(content) // 2])


def triggered(checkpoint_id: int) -> CheckpointTriggered:
    return CheckpointTriggered(
        checkpoint_id=CheckpointId(checkpoint_id),
        kind=CheckpointKind.CHECKPOINT,
        trigger_ms=1,
        subtask_count=1,
        request_id=None,
    )
