"""The segments of a journal: files of bounded size that each continue the one before.

A segment is named after the place at which it begins in the whole journal. So a place is one number
for the writer and all readers, however many files there are and whichever are gone. The writer
appends only to the newest. The first is `journal.jsonl`. Each later one appears whole with its
first line, the summary of all before it (`JournalContinued`), so those before it may be deleted.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pipelines.disk.atomic_files import FOR_ALL, create_if_absent
from pipelines.disk.directories import make_durable
from pipelines.domain.errors import check

SEGMENT_BYTES = 16 << 20
"""Two hours of a run that writes 2 kB a second. A new driver reads at most one segment."""

APPENDING = os.O_WRONLY | os.O_APPEND


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """`base`: where the segment begins in the whole journal, in bytes."""

    base: int
    path: Path


def segments_of(journal: Path) -> list[Segment]:
    """The segments that exist, oldest first; `journal` is the path of the first."""
    try:
        names = os.listdir(journal.parent)
    except FileNotFoundError:
        return []
    pattern = re.compile(re.escape(journal.stem) + r"-(\d{18})" + re.escape(journal.suffix))
    later = [match for match in map(pattern.fullmatch, names) if match is not None]
    found = [Segment(int(match[1]), journal.parent / match[0]) for match in later]
    if journal.name in names:
        found.append(Segment(0, journal))
    return sorted(found)


def newest_segment(journal: Path) -> Segment:
    """The segment that is written to; the first, which need not exist yet, if there is none."""
    return max(segments_of(journal), default=Segment(0, journal))


def begin_segment(journal: Path, base: int, first_line: bytes) -> tuple[Segment, int]:
    """Creates a segment, whole and durable; returns it and the file to append to.

    Raises OSError: the segment then does not exist.
    """
    segment = Segment(base, journal.with_name(f"{journal.stem}-{base:018d}{journal.suffix}"))
    is_new = create_if_absent(segment.path, first_line, FOR_ALL)
    check(is_new, "a journal has one writer", segment=str(segment.path))
    try:
        make_durable(journal.parent)
        return segment, os.open(segment.path, APPENDING)
    except OSError:
        segment.path.unlink()
        raise


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment with a successor. `end`: where the successor begins."""

    segment: Segment
    end: int
    closed_s: float  # wall clock: when its last line was written


def closed_segments(journal: Path) -> list[ClosedSegment]:
    """All but the newest, oldest first."""
    found = segments_of(journal)
    return [
        ClosedSegment(segment, following.base, segment.path.stat().st_mtime)
        for segment, following in pairwise(found)
    ]


def expendable(
    closed: Sequence[ClosedSegment], read_up_to: int, closed_before_s: float
) -> list[ClosedSegment]:
    """The segments that may be deleted, oldest first: old enough, and read by every reader.

    Keeps all segments behind one that it keeps, so the rest of a journal has no hole. `read_up_to`
    is the place of the slowest reader.
    """
    going: list[ClosedSegment] = []
    for each in closed:
        if each.end > read_up_to or each.closed_s >= closed_before_s:
            break
        going.append(each)
    return going


def delete_segments(segments: Sequence[Segment]) -> None:
    """Deletes in this order, each durably before the next. You may repeat it."""
    for segment in segments:
        segment.path.unlink(missing_ok=True)
        make_durable(segment.path.parent)
