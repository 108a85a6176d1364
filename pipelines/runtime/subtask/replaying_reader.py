"""Reads what a source had set aside before what is new of it, as one reader.

Event time is the source's alone: records of the quarantine come before anything that is new of it,
and are late for whatever has closed by then. Decides nothing about what is read again; see
`connectors.files.replayed_quarantine`.
"""

import pyarrow as pa

from pipelines.domain.snapshots import Json
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.source_reader import SourceReader, SplitInWork


class ReplayingReader:
    """Guarantee: each record comes once, from the source or from its quarantine, as the positions
    of both say, and none of the source before the quarantine is used up. Needs a caller that stores
    both with the same cut.
    """

    def __init__(self, source: SourceReader, quarantine: SourceReader) -> None:
        self._source = source
        self._quarantine = quarantine
        self._current = source

    @property
    def is_replaying(self) -> bool:
        """The newest batch was of the quarantine."""
        return self._current is self._quarantine

    @property
    def split(self) -> SplitInWork | None:
        return self._current.split

    @property
    def asked(self) -> SplitInWork | None:
        return self._current.asked

    @property
    def is_exhausted(self) -> bool:
        return self._quarantine.is_exhausted and self._source.is_exhausted

    def next(self) -> pa.RecordBatch | None:
        """None also while the quarantine has nothing at the moment, as where a record is set aside
        again: one more batch of the source may end event time."""
        self._current = self._quarantine
        batch = self._quarantine.next()
        if batch is None and self._quarantine.is_exhausted:
            self._current = self._source
            batch = self._source.next()
        return batch

    def positions(self) -> Json:
        return self._source.positions()

    def watermark_ms(self) -> int | None:
        return self._source.watermark_ms()

    def take_marks(self) -> list[EventTimeMark]:
        return self._source.take_marks()

    def take_far_ahead_count(self) -> int:
        return self._source.take_far_ahead_count()

    def confirm(self) -> None:
        """As `SourceReader.confirm`."""
        self._source.confirm()

    def close(self) -> None:
        """The reader of the quarantine is closed by whoever gave it."""
        self._source.close()
