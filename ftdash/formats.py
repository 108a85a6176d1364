"""How numbers, durations, sizes and times are written for people. Pure.

`None` means unknown and is written as a dash, never as zero.
"""

from datetime import UTC, datetime, timedelta

UNKNOWN = "–"
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
FIRST_EVENT_TIME_MS = -62_135_596_800_000
"""Year 1: anything before it means "nothing is known yet"."""

LAST_EVENT_TIME_MS = 253_402_300_799_999
"""Year 9999: anything after it means "event time has ended"."""

BYTE_UNITS = ("kB", "MB", "GB", "TB", "PB")


def duration(milliseconds: float | None) -> str:
    """`0.4 ms`, `84 ms`, `1.25 s`, `12.3 s`, `2 min 05 s`, `3 h 12 min`, `2 d 4 h`."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < SECOND_MS:
        return f"{milliseconds:.1f} ms" if 0 < milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if milliseconds < 10 * SECOND_MS:
        return f"{milliseconds / SECOND_MS:.2f} s"
    if milliseconds < MINUTE_MS:
        return f"{milliseconds / SECOND_MS:.1f} s"
    return long_duration(int(milliseconds))


def long_duration(milliseconds: int) -> str:
    if milliseconds < HOUR_MS:
        minutes, rest = divmod(milliseconds, MINUTE_MS)
        return f"{minutes} min {rest // SECOND_MS:02d} s"
    if milliseconds < DAY_MS:
        hours, rest = divmod(milliseconds, HOUR_MS)
        return f"{hours} h {rest // MINUTE_MS:02d} min"
    days, rest = divmod(milliseconds, DAY_MS)
    return f"{days} d {rest // HOUR_MS} h"


def age(milliseconds: float | None) -> str:
    """Whole units, for clocks that tick: `3 s`, `2 min 05 s`."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < MINUTE_MS:
        return f"{max(0, int(milliseconds)) // SECOND_MS} s"
    return long_duration(int(milliseconds))


def held_for(seconds: float) -> str:
    """Formats how long a condition must hold before it counts: `at once`, `for 30.0 s`."""
    return f"for {duration(1000 * seconds)}" if seconds else "at once"


def period(length: timedelta) -> str:
    """Formats how long something is kept: `30 days`, `3 h 00 min`."""
    return plural(length.days, "day") if length.days else duration(1000 * length.total_seconds())


def size(byte_count: float | None) -> str:
    """Decimal units with three significant digits: `0 B`, `812 B`, `1.24 MB`."""
    if byte_count is None:
        return UNKNOWN
    if byte_count < 1_000:
        return f"{byte_count:.0f} B"
    value = float(byte_count)
    unit = "B"
    for candidate in BYTE_UNITS:
        value, unit = value / 1_000, candidate
        if value < 999.5:
            break
    return f"{value:.{significant_decimals(value)}f} {unit}"


def count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.0f}"


def number(value: float | None) -> str:
    """`1,234` for whole numbers, others with three significant digits: `0.125`."""
    if value is None or value == int(value):
        return count(value)
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def rate(per_second: float | None) -> str:
    """`0/s`, `950/s`, `12.4 k/s`, `3.21 M/s`."""
    if per_second is None:
        return UNKNOWN
    for divisor, unit in ((1e6, "M"), (1e3, "k")):
        if per_second >= divisor * 0.9995:
            value = per_second / divisor
            return f"{value:.{significant_decimals(value)}f} {unit}/s"
    return f"{per_second:.0f}/s"


def percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f} %"


def utc(moment: datetime | None) -> str:
    return UNKNOWN if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def utc_clock(moment: datetime | None) -> str:
    return UNKNOWN if moment is None else f"{moment.astimezone(UTC):%H:%M:%S} UTC"


def event_time(epoch_ms: int | None) -> str:
    """Formats a watermark, which is event time, so it is never shown in the viewer's time zone."""
    if epoch_ms is None or epoch_ms < FIRST_EVENT_TIME_MS:
        return UNKNOWN
    if epoch_ms > LAST_EVENT_TIME_MS:
        return "end of input"
    return f"{datetime.fromtimestamp(epoch_ms / SECOND_MS, UTC):%Y-%m-%d %H:%M}"


def plural(number: int | None, singular: str, several: str | None = None) -> str:
    """`1 record`, `2,400 records`."""
    word = singular if number == 1 else several or f"{singular}s"
    return f"{count(number)} {word}"


def words(constant: str) -> str:
    """Turns `NEVER_STARTED` into `Never started`."""
    return constant.replace("_", " ").capitalize()


def short_path(path: str) -> str:
    """Returns the last two parts: enough to distinguish points; the title has the whole path."""
    return "/".join(path.rstrip("/").split("/")[-2:])


def significant_decimals(value: float) -> int:
    return 2 if value < 9.995 else 1 if value < 99.95 else 0
