"""Keeps the latest sample of every slot, and sums the samples up once a second for the journal.

The position of a run is the number of records that its sources have read. Every point stores it,
and every attempt continues from there. It is known once all slots of an attempt have reported: a
sum over some of them would fall and rise again with each restart, and so would the rate.
"""

from collections import deque

from pipelines.domain.clock import Clock
from pipelines.domain.errors import check
from pipelines.domain.events import MetricsSampled, RestoreProgress, SlotSample
from pipelines.domain.status import JobStatus
from pipelines.runtime.control import Sampled

METRICS_PERIOD_MS = 1000.0
MEAN_OVER_MS = 10_000.0
"""A source that reads in batches reads nothing in many seconds, though its mean speed is steady."""


class MetricsBoard:
    """Guarantee: `reached_records` is the furthest position that the slots of any attempt have
    reported; restarts do not add to it."""

    def __init__(self, clock: Clock, slot_count: int, reached_records: int = 0) -> None:
        """`reached_records`: the value that the driver before this one reported last."""
        self._clock = clock
        self._slot_count = slot_count
        self._samples: dict[int, Sampled] = {}
        self._restored_records = 0
        self._reached_records = reached_records
        self._reported_records = 0
        self._reported_ms = clock.monotonic_ms()
        self._counters: dict[str, int] = {}
        self._periods: deque[tuple[float, float, int]] = deque()  # from, to, and records read

    @property
    def due_ms(self) -> float:
        return self._reported_ms + METRICS_PERIOD_MS

    @property
    def source_records(self) -> int:
        """The position of the newest attempt, as of the latest samples."""
        if not self._has_all:
            return self._restored_records
        return sum(sample.source_records for sample in self._samples.values())

    @property
    def reached_records(self) -> int:
        """The furthest position of any attempt: the run has read every record before it."""
        return self._reached_records

    def on_sampled(self, slot: int, sample: Sampled) -> None:
        count = self._slot_count
        check(0 <= slot < count, "a sample is of a slot of the run", slot=slot, count=count)
        self._samples[slot] = sample
        if self._has_all:
            self._reached_records = max(self._reached_records, self.source_records)
            self._counters = self._summed_counters()

    def on_attempt_ended(self, restored_records: int, *, reads_again: bool = True) -> None:
        """Drops the samples of dead slots; the next attempt begins at `restored_records`.

        With `reads_again` False (at most once), the sources do not read the records up to the
        reached position again."""
        self._samples = {}
        self._restored_records = self._reported_records = restored_records
        self._periods.clear()  # the time until the next attempt runs must not lower the mean rate
        before = self._reached_records if reads_again else 0
        self._reached_records = max(before, restored_records)

    def report(
        self,
        status: JobStatus,
        last_completed_ms: int | None,
        last_committed_ms: int | None,
        restoring: RestoreProgress | None = None,
        next_restart_delay_ms: float | None = None,
    ) -> MetricsSampled:
        now_ms = self._clock.monotonic_ms()
        elapsed_s = max(now_ms - self._reported_ms, 1.0) / 1000.0
        records = self.source_records
        read = max(0, records - self._reported_records)
        self._note_period(now_ms, read)
        self._reported_records, self._reported_ms = records, now_ms
        return MetricsSampled(
            status=status,
            records_per_s=read / elapsed_s,
            mean_records_per_s=self._mean_per_s(),
            last_completed_ms=last_completed_ms,
            last_committed_ms=last_committed_ms,
            subtasks=[
                one for slot in sorted(self._samples) for one in self._samples[slot].subtasks
            ],
            slots=[
                SlotSample(slot=slot, resident_bytes=sample.resident_bytes)
                for slot, sample in sorted(self._samples.items())
            ],
            counters=self._counters,
            restoring=restoring,
            reached_records=self._reached_records,
            restored_records=self._restored_records,
            next_restart_delay_ms=next_restart_delay_ms,
        )

    def _note_period(self, now_ms: float, read: int) -> None:
        if self._has_all:
            self._periods.append((self._reported_ms, now_ms, read))
        while self._periods and self._periods[0][0] < now_ms - MEAN_OVER_MS:
            self._periods.popleft()

    def _mean_per_s(self) -> float:
        if not self._periods:
            return 0.0
        spanned_ms = max(1.0, self._periods[-1][1] - self._periods[0][0])
        return 1000.0 * sum(read for _, _, read in self._periods) / spanned_ms

    @property
    def _has_all(self) -> bool:
        return len(self._samples) >= self._slot_count

    def _summed_counters(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for sample in self._samples.values():
            for name, value in sample.counters.items():
                totals[name] = totals.get(name, 0) + value
        return totals
