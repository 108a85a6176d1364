"""Parts of times, in UTC. Only the distinct values of a batch are formatted."""

import pyarrow as pa
import pyarrow.compute as pc

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
TEXTS = pa.array([f"{hour:02d}:{minute:02d}" for hour in range(24) for minute in range(60)])


def day(times: pa.Array) -> pa.Array:
    """Returns days, such as 2015-07-15."""
    days = pc.divide(times.cast(pa.int64()), DAY_MS).cast(pa.int32()).cast(pa.date32())
    found = days.dictionary_encode()
    return pc.strftime(found.dictionary, "%Y-%m-%d").take(found.indices)


def minute(times: pa.Array) -> pa.Array:
    """Returns the minutes since midnight."""
    return pc.divide(_since_midnight_ms(times), MINUTE_MS)


def hour(times: pa.Array) -> pa.Array:
    return pc.divide(_since_midnight_ms(times), HOUR_MS)


def formatted(minutes: pa.Array) -> pa.Array:
    """Formats minutes since midnight as a time, such as 07:05."""
    return TEXTS.take(minutes)


def _since_midnight_ms(times: pa.Array) -> pa.Array:
    ms = times.cast(pa.int64())
    return pc.subtract(ms, pc.multiply(pc.divide(ms, DAY_MS), DAY_MS))
