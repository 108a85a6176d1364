"""Reads a source's quarantine and then its new records, as one reader.

Event time is the source's alone. Records of the quarantine come before the source's new records,
and are late for windows that have closed by then. `connectors.files.replayed_quarantine` decides
what is read again.
"""

import pyarrow as pa

from pipelines.domain.snapshots import Json
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.source_reader import SourceReader, SplitInWork


class ReplayingReader:
    """Guarantee: each record comes once, from the source or from its quarantine, as the positions
    of both say, and none of the source comes before the quarantine is used up. Needs a caller that
    stores both with the same cut.
    """

    def __init__(self, source: SourceReader, quarantine: SourceReader) -> None:
        self._source = source
        self._quarantine = quarantine
        self._current = source

    @property
    def is_replaying(self) -> bool:
        """True if the newest batch came from the quarantine."""
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
        """None also if the quarantine has nothing at the moment, for example where a record is set
        aside again: one more batch of the source may end event time."""
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
        """Like `SourceReader.confirm`."""
        self._source.confirm()

    def close(self) -> None:
        """The owner of the quarantine's reader closes that one."""
        self._source.close()
