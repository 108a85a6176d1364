"""The figures that make a next step exact: how much room is left where, and which server is away.

Pure, apart from `room_at`, which asks the system about a disk.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ftdash.formats import percent, plural, size
from ftdash.incidents.causes import Cause

_PATH = re.compile(r"(?<![\w.])(/[\w.\-/=@+]*[\w\-=@+])")
_PORTS = (  # how clients of PostgreSQL, Redis, Kafka and object stores name what they cannot reach
    re.compile(r'at "(?P<host>[^"\s]+)"(?: \([^)]*\))?,? port (?P<port>\d{1,5})'),
    re.compile(
        r"(?<![\d:.\w])(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9][\w.\-]*):(?P<port>\d{2,5})(?![\d:])"
    ),
)
_OFFSETS_GONE = re.compile(r"offsets ([\d,]+) to ([\d,]+) are gone")  # a source of Kafka says so
_ENTRIES_GONE = re.compile(r"([\d,]+) entries, (\d+-\d+) to (\d+-\d+), are gone")  # one of Redis
_SLOT = re.compile(r"Slot (\d+) \(pid")
_OF_DISKS = frozenset({Cause.DISK_FULL, Cause.DISK_READ_ONLY})


@dataclass(frozen=True, slots=True)
class Room:
    """Of one file system, as it is now."""

    mount: str
    free_bytes: int
    total_bytes: int

    @property
    def sentence(self) -> str:
        share = percent(self.free_bytes / self.total_bytes) if self.total_bytes else "nothing"
        return (
            f"{size(self.free_bytes)} of {size(self.total_bytes)} ({share}) are free on"
            f" {self.mount} now."
        )


def path_in(text: str) -> str | None:
    """The first path that a message names; None: it names none."""
    found = _PATH.search(text)
    return found[1] if found else None


def server_in(text: str) -> str | None:
    """`host:port` of the server that a message is about; None: it names none."""
    for pattern in _PORTS:
        if found := pattern.search(text):
            return f"{found['host']}:{found['port']}"
    return None


def slot_in(text: str) -> str | None:
    """The number of the slot that a message is about; None: it is about none."""
    found = _SLOT.match(text)
    return found[1] if found else None


def memory_of(slot: str, resident_bytes: int) -> str:
    """What a slot that is gone was last known to hold."""
    return f"Slot {slot} held {size(resident_bytes)} of memory when it was last heard of."


def figures(cause: Cause, text: str) -> str:
    """One sentence with what a person has to know to act; empty: the message has no more in it."""
    if cause in _OF_DISKS and (path := path_in(text)) is not None:
        room = room_at(Path(path))
        return room.sentence if room else ""
    if cause is Cause.INPUT_LOST:
        return _gap(text)
    if cause is Cause.SYSTEM_AWAY and (server := server_in(text)) is not None:
        return f"{server} does not answer."
    return ""


def _gap(text: str) -> str:
    if (gone := _OFFSETS_GONE.search(text)) is not None:
        first, last = (int(each.replace(",", "")) for each in gone.groups())
        count = plural(last - first + 1, "record")
        return f"The gap has up to {count}, offsets {first:,} to {last:,}."
    if (gone := _ENTRIES_GONE.search(text)) is not None:
        count = plural(int(gone[1].replace(",", "")), "record")
        return f"The gap has up to {count}, entries {gone[2]} to {gone[3]}."
    return ""


def room_at(path: Path) -> Room | None:
    """Of the file system that holds `path`, or would; None: it is not on this machine."""
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
        if there == Path("/") and len(path.parts) > 2:
            return None
        used = shutil.disk_usage(there)
        mount = next(each for each in (there, *there.parents) if each.is_mount())
    except (OSError, StopIteration):
        return None
    return Room(str(mount), used.free, used.total)
