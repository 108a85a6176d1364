"""The answers of the metrics queries: frozen values."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SamplePoint:
    at: datetime
    records_per_s: float
    queued_records: int
    resident_bytes: dict[int, int]  # slot to bytes
