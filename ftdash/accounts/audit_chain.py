"""The chain of the audit log: each entry holds the digest of the entry before it. Pure.

A digest covers the entry and the digest before it, so a change to an entry, its removal, or an
entry put in between breaks the chain at that place. A digest that you noted before reveals two more
changes: entries cut off at the end, and a chain that was recomputed from some entry on.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import msgspec

BEGINNING = ""
"""The digest before the first entry."""


class Entry(Protocol):
    """A row of the log. `pk` counts upwards, with gaps."""

    pk: int
    at: datetime
    who: str
    what: str
    subject: str
    detail: str
    reason: str
    refusal: str
    previous: str
    digest: str


def digest_after(previous: str, entry: Entry) -> str:
    """Returns the SHA-256 of the previous digest and the entry, in hexadecimal."""
    written = (entry.who, entry.what, entry.subject, entry.detail, entry.reason, entry.refusal)
    at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
    return hashlib.sha256(msgspec.json.encode((previous, at, *written))).hexdigest()


@dataclass(frozen=True, slots=True)
class Verified:
    """`broken` is one sentence about the first entry that does not fit, or empty if all fit."""

    entries: int
    newest: str  # digest of the last entry that fits
    broken: str
    has_noted: bool  # an entry that fits has the noted digest; True if none was noted
    unlogged: tuple[str, ...] = ()  # ids of requests to pipelines that have no entry

    @property
    def is_whole(self) -> bool:
        return not self.broken and not self.unlogged and self.has_noted


def verify(entries: Iterable[Entry], noted: str = "") -> Verified:
    """Reads the entries, oldest first, up to the first one that does not fit."""
    count, newest, has_noted = 0, BEGINNING, not noted
    for entry in entries:
        broken = _broken(newest, entry)
        if broken:
            return Verified(count, newest, broken, has_noted)
        count, newest = count + 1, entry.digest
        has_noted = has_noted or newest == noted
    return Verified(count, newest, "", has_noted)


def _broken(before: str, entry: Entry) -> str:
    called = f"Entry {entry.pk} ({entry.who} {entry.what} {entry.subject}, {entry.at:%Y-%m-%d})"
    if entry.previous != before:
        return f"{called} does not follow the entry before it: one was removed or put in between."
    if entry.digest != digest_after(before, entry):
        return f"{called} was changed after it was written."
    return ""
