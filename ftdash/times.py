"""Converts milliseconds of the engine to datetimes of the database, and back. Always UTC."""

import time
from datetime import UTC, datetime, timedelta

from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(epoch_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=epoch_ms)


def epoch_ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def moment_or_none(epoch_ms: int | None) -> datetime | None:
    return None if epoch_ms is None else moment(epoch_ms)


def watermark_moment(watermark_ms: int | None) -> datetime | None:
    """Returns None while event time is unknown, and after it has ended."""
    if watermark_ms is None or not MIN_WATERMARK_MS < watermark_ms < MAX_WATERMARK_MS:
        return None
    return moment(watermark_ms)


class WallClock:
    """Implements `pipelines.domain.clock.Clock` for events that the control plane writes."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
