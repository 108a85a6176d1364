"""The log of a run: lines of JSON in a few files of its directory, each of bounded length.

Only the driver that holds the lease writes. A driver that was replaced logs only to its own
`driver.log`; lines that it was writing at that moment may still arrive.

The writer begins a new file when the newest is full, and deletes the oldest. So a log never takes
more than `FILES_MAX` times `FILE_BYTES_MAX`. Lines are not synced: a loss of power may cost the
last ones, and a torn line is skipped. Readers need no lock.
"""

import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pipelines.bus.lease import LeaseLost
from pipelines.domain.errors import UNDECODABLE
from pipelines.domain.ids import Attempt
from pipelines.domain.log_lines import DRIVER, LinePlace, LogLine

FILE_BYTES_MAX = 4 << 20
FILES_MAX = 4
WAITING_MAX = 200
"""How many lists of lines may wait for the disk. Further ones are dropped and counted."""

END_S = 2.0
_NAME = re.compile(r"([0-9]{6,9})\.jsonl")


class RunLog:
    """Writes on a thread of its own, so a slow disk delays no caller. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        check_held: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_held` raises LeaseLost once another driver has taken the run over."""
        self._directory = directory
        self._check_held = check_held
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._waiting: queue.Queue[list[LogLine] | None] = queue.Queue(WAITING_MAX)
        self._counting = threading.Lock()
        self._dropped = 0  # since the last list that the thread took
        self._encoder = msgspec.json.Encoder()
        self._thread = threading.Thread(target=self._write_all, name="run log", daemon=True)
        self._thread.start()

    def keep(self, lines: Iterable[LogLine], dropped: int = 0) -> None:
        """`dropped` is how many lines the sender has lost before these."""
        kept = list(lines)
        try:
            self._waiting.put_nowait(kept)
        except queue.Full:
            dropped += len(kept)
        self._drop(dropped)

    @property
    def dropped(self) -> int:
        """Lines that are lost and not counted in the log yet."""
        with self._counting:
            return self._dropped

    def close(self) -> None:
        """Waits for the disk, but not for long."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=END_S)
            self._thread.join(END_S)

    def _drop(self, count: int) -> None:
        with self._counting:
            self._dropped += count

    def _write_all(self) -> None:
        while (lines := self._waiting.get()) is not None:
            with self._counting:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lines = [_lost(dropped), *lines]
            try:
                self._check_held()
                self._write(lines)
            except LeaseLost:  # the log is the successor's
                continue
            except OSError:  # a full disk must not end a run
                self._drop(dropped + sum(line.logger != __name__ for line in lines))

    def _write(self, lines: list[LogLine]) -> None:
        encoded = b"".join(self._encoder.encode(line) + b"\n" for line in lines)
        if not encoded:
            return
        self._directory.mkdir(exist_ok=True)
        numbers = [number for number, _ in log_files(self._directory)]
        number = numbers[-1] if numbers else 1
        path = self._path(number)
        with path.open("ab") as file:
            is_torn = file.tell() > 0 and not _ends_with_newline(path)
            file.write(b"\n" * is_torn + encoded)
            is_full = file.tell() >= self._file_bytes_max
        if is_full:
            self._path(number + 1).touch()
            for old in numbers[: len(numbers) + 1 - self._files_max]:
                self._path(old).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06}.jsonl"


def _lost(count: int) -> LogLine:
    return LogLine(
        time=datetime.now(UTC),
        level="WARNING",
        subtask=DRIVER,
        attempt=Attempt(0),
        logger=__name__,
        message=f"{count} lines before this one were dropped: they came faster than they could be"
        " kept.",
    )


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def log_files(directory: Path) -> list[tuple[int, Path]]:
    """Returns numbers and paths, the oldest first."""
    try:
        found = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), path) for match, path in found if match)


def newest_lines(
    directory: Path,
    wanted: Callable[[LogLine], bool],
    count: int,
    before: LinePlace | None = None,
) -> list[tuple[LinePlace, LogLine]]:
    """Returns the newest wanted lines in order, at most `count`; with `before`, those before it.

    A line that is no LogLine is skipped.
    """
    found: list[tuple[LinePlace, LogLine]] = []
    for place, text in _backwards(directory, before):
        line = _decoded(text)
        if line is not None and wanted(line):
            found.append((place, line))
            if len(found) == count:
                break
    return found[::-1]


def lines_from(
    directory: Path, wanted: Callable[[LogLine], bool], count: int, first: LinePlace
) -> list[tuple[LinePlace, LogLine]]:
    """Returns at most `count` of the wanted lines, beginning at `first`."""
    after = [each for each in _backwards(directory, None) if each[0] >= first]
    lines = ((place, _decoded(text)) for place, text in reversed(after))
    return [(place, line) for place, line in lines if line is not None and wanted(line)][:count]


def _backwards(directory: Path, before: LinePlace | None) -> Iterator[tuple[LinePlace, bytes]]:
    for number, path in reversed(log_files(directory)):
        if before is not None and number > before.file:
            continue
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # the driver has just deleted it
            continue
        if before is not None and number == before.file:
            content = content[: before.offset]
        end = content.rfind(b"\n")  # what follows is still being written
        while end > 0:
            begin = content.rfind(b"\n", 0, end) + 1
            yield LinePlace(number, begin), content[begin:end]
            end = begin - 1


_DECODER = msgspec.json.Decoder(LogLine)


def _decoded(text: bytes) -> LogLine | None:
    try:
        return _DECODER.decode(text)
    except UNDECODABLE:
        return None
