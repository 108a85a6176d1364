"""The only readers of the rows of metrics."""

from ftdash.metrics.answers import SamplePoint
from ftdash.metrics.models import Sample


def samples(run_id: str, limit: int = 600) -> list[SamplePoint]:
    """The newest `limit` samples of a run, oldest first."""
    newest = Sample.objects.filter(run__run_id=run_id).order_by("-sequence").defer("subtasks")
    return [
        SamplePoint(
            at=row.at,
            records_per_s=row.records_per_s,
            queued_records=row.queued_records,
            resident_bytes={int(slot): size for slot, size in row.resident_bytes.items()},
        )
        for row in reversed(newest[:limit])
    ]
