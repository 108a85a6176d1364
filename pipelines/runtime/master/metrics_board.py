"""The latest sample of every slot, summed up once a second for the journal."""

from pipelines.domain.clock import Clock
from pipelines.domain.events import MetricsSampled, SlotSample
from pipelines.domain.status import JobStatus
from pipelines.runtime.control import Sampled

METRICS_PERIOD_MS = 1000.0


class MetricsBoard:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: dict[int, Sampled] = {}
        self._reported_records = 0
        self._reported_ms = clock.monotonic_ms()

    @property
    def due_ms(self) -> float:
        return self._reported_ms + METRICS_PERIOD_MS

    @property
    def source_records(self) -> int:
        """Read by all sources since the first run, as of the latest samples."""
        return sum(sample.source_records for sample in self._samples.values())

    def on_sampled(self, slot: int, sample: Sampled) -> None:
        self._samples[slot] = sample

    def on_attempt_ended(self, restored_records: int) -> None:
        """Samples of dead slots say nothing any more; the next ones count from the restore."""
        self._samples = {}
        self._reported_records = restored_records

    def report(
        self, status: JobStatus, last_completed_ms: int | None, last_committed_ms: int | None
    ) -> MetricsSampled:
        now_ms = self._clock.monotonic_ms()
        elapsed_s = max(now_ms - self._reported_ms, 1.0) / 1000.0
        records = self.source_records if self._samples else self._reported_records
        read = max(0, records - self._reported_records)
        self._reported_records, self._reported_ms = records, now_ms
        return MetricsSampled(
            status=status,
            records_per_s=read / elapsed_s,
            last_completed_ms=last_completed_ms,
            last_committed_ms=last_committed_ms,
            subtasks=[
                one for slot in sorted(self._samples) for one in self._samples[slot].subtasks
            ],
            slots=[
                SlotSample(slot=slot, resident_bytes=sample.resident_bytes)
                for slot, sample in sorted(self._samples.items())
            ],
            counters=self._counters(),
        )

    def _counters(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for sample in self._samples.values():
            for name, value in sample.counters.items():
                totals[name] = totals.get(name, 0) + value
        return totals
