"""The log of a run: bounded, readable while it is written, with places that keep their line."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipelines.bus.lease import LeaseLost
from pipelines.bus.run_log import RunLog, lines_from, log_files, newest_lines
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.log_lines import LinePlace, LogLine, is_at_least
from pipelines.domain.run import RunDirectory
from pipelines.domain.texts import remember_secret
from pipelines.runtime.logged_lines import HELD_MAX, SENT_MAX, SlotLog, line_of
from tests.polling import wait_until


def line(message: str, level: str = "INFO") -> LogLine:
    return LogLine(
        time=datetime.now(UTC),
        level=level,
        subtask="orders[0]",
        attempt=Attempt(1),
        logger="shop",
        message=message,
    )


def written(directory: Path, *messages: str, file_bytes_max: int = 1 << 20) -> None:
    log = RunLog(directory, file_bytes_max=file_bytes_max, files_max=3)
    for message in messages:
        log.keep([line(message)])
    log.close()


def everything(directory: Path) -> list[str]:
    return [each.message for _, each in newest_lines(directory, lambda _: True, 10_000)]


def test_a_later_driver_continues_after_a_torn_line(tmp_path: Path) -> None:
    written(tmp_path, "one", "two")
    [(_, path)] = log_files(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"time": "2026-')

    written(tmp_path, "three")

    assert everything(tmp_path) == ["one", "two", "three"]


def test_a_log_keeps_a_bounded_number_of_files_of_bounded_size(tmp_path: Path) -> None:
    messages = [f"message {number:04}" for number in range(100)]

    for message in messages:
        written(tmp_path, message, file_bytes_max=1_000)

    files = log_files(tmp_path)
    assert len(files) == 3
    assert sum(path.stat().st_size for _, path in files) < 3 * 1_200
    kept = everything(tmp_path)
    assert kept == messages[-len(kept) :]
    assert files[0][0] > 1


def test_a_place_always_names_the_same_line(tmp_path: Path) -> None:
    written(tmp_path, *"abcdef", file_bytes_max=300)
    found = newest_lines(tmp_path, lambda _: True, 10)
    [place] = [place for place, each in found if each.message == "c"]
    written(tmp_path, *"gh", file_bytes_max=300)

    assert LinePlace.parse(str(place)) == place
    [first, second] = lines_from(tmp_path, lambda _: True, 2, place)
    assert (first[0], first[1].message, second[1].message) == (place, "c", "d")
    assert [e.message for _, e in newest_lines(tmp_path, lambda _: True, 2, place)] == ["a", "b"]
    assert LinePlace.parse("1-x") is None


def test_a_replaced_driver_writes_no_more_lines(tmp_path: Path) -> None:
    def check_held() -> None:
        raise LeaseLost(RunDirectory.of(tmp_path, "counts", RunId("run-1")), None)

    log = RunLog(tmp_path / "log", check_held=check_held)
    log.keep([line("one")])
    log.close()

    assert everything(tmp_path / "log") == []


@pytest.mark.parametrize("is_disk_full", [True, False])
def test_an_unwritable_log_drops_and_counts_lines_without_an_error(
    tmp_path: Path, is_disk_full: bool
) -> None:
    directory = tmp_path / "log"
    obstacle = full_file(directory) if is_disk_full else file_in_place_of(directory)
    log = RunLog(directory)
    log.keep([line("lost"), line("lost too")], dropped=3)
    wait_until(lambda: log.dropped == 5)

    obstacle.unlink()
    log.keep([line("kept")])
    log.close()

    [count, kept] = everything(directory)
    assert count.startswith("5 lines before this one were dropped")
    assert kept == "kept"


@pytest.mark.parametrize(
    ("level", "wanted", "is_shown"),
    [("ERROR", "WARNING", True), ("INFO", "WARNING", False), ("NOTICE", "INFO", True)],
)
def test_a_level_shows_lines_of_that_severity_or_worse(
    level: str, wanted: str, is_shown: bool
) -> None:
    assert is_at_least(level, wanted) is is_shown


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("shop", logging.INFO, __file__, 1, message, arguments, None)


def test_a_log_line_masks_revealed_secrets() -> None:
    remember_secret("hunter2-of-the-logs")
    said = record("sent %s", "hunter2-of-the-logs")
    said.exc_text = "ValueError: hunter2-of-the-logs"

    kept = line_of(said, "slot 1", Attempt(2))

    assert (kept.message, kept.trace, kept.subtask) == ("sent ***", "ValueError: ***", "slot 1")


def test_a_slot_that_logs_too_much_drops_lines_and_counts_them() -> None:
    sent: list[tuple[int, int]] = []
    slot = SlotLog(1, Attempt(1), lambda lines, dropped: sent.append((len(lines), dropped)))

    for number in range(HELD_MAX + 7):
        slot.handle(record("line %d", number))
    slot.handle(record("does not fit %d", "a word"))
    slot.send_held()

    assert sum(count for count, _ in sent) == HELD_MAX
    assert max(count for count, _ in sent) == SENT_MAX
    assert sum(dropped for _, dropped in sent) == 7


def full_file(directory: Path) -> Path:
    """Returns the log's first file; every write to it fails with ENOSPC."""
    directory.mkdir()
    file = directory / "000001.jsonl"
    file.symlink_to("/dev/full")
    return file


def file_in_place_of(directory: Path) -> Path:
    directory.write_text("a file in the place of the directory")
    return directory
