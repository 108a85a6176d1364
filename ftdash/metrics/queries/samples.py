"""The only readers of the rows of metrics."""

from ftdash.metrics.answers import SamplePoint
from ftdash.metrics.models import Sample


def samples(run_id: str, limit: int = 600) -> list[SamplePoint]:
    """The newest `limit` samples of a run, oldest first."""
    newest = Sample.objects.filter(run__run_id=run_id).order_by("-sequence")
    found = newest.values_list("at", "records_per_s", "queued_records", "resident_bytes")
    return [
        SamplePoint(
            at=at,
            records_per_s=records_per_s,
            queued_records=queued_records,
            resident_bytes={int(slot): size for slot, size in resident_bytes.items()},
        )
        for at, records_per_s, queued_records, resident_bytes in reversed(found[:limit])
    ]
