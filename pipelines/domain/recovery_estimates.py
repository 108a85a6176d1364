"""How much checkpoints write, and how long a recovery takes.

Each has two estimates: a textbook's, and one whose units fit its name. Textbooks write "checkpoint
volume = state size x checkpoint frequency". That is a rate (bytes per second), and it counts the
whole state even if a checkpoint only writes the changes. They write "recovery time = state size /
(read speed x bandwidth)". That is not a time: bytes over the product of two speeds are seconds
squared per byte. Data that is read and then sent is limited by the slower of the two, and reading
is only a part of a recovery.
"""

from dataclasses import dataclass

from pipelines.domain.errors import check

MS_PER_S = 1000.0


def textbook_volume_bytes_per_s(state_bytes: float, interval_ms: float) -> float:
    """The whole state, once per interval."""
    check(interval_ms > 0, "an interval lasts", interval_ms=interval_ms)
    return state_bytes * MS_PER_S / interval_ms


def written_bytes_per_s(uploaded_bytes: float, interval_ms: float) -> float:
    """What a checkpoint uploads (with increments, less than the state), once per interval."""
    return textbook_volume_bytes_per_s(uploaded_bytes, interval_ms)


def kept_bytes(state_bytes: float, uploaded_bytes: float, retained: int) -> float:
    """About how much the storage holds: one whole state, and what each further point adds."""
    check(retained >= 1, "one point is retained at least", retained=retained)
    return state_bytes + (retained - 1) * uploaded_bytes


def textbook_recovery(
    state_bytes: float, read_bytes_per_s: float, bandwidth_bytes_per_s: float
) -> float:
    """As textbooks write it, in seconds squared per byte."""
    check(read_bytes_per_s > 0 and bandwidth_bytes_per_s > 0, "data moves")
    return state_bytes / (read_bytes_per_s * bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class RecoveryEstimate:
    """In ms. `catch_up_ms` None: it never catches up; input comes as fast as it can be read."""

    restart_ms: float
    read_ms: float
    catch_up_ms: float | None

    @property
    def to_running_ms(self) -> float:
        return self.restart_ms + self.read_ms

    @property
    def to_caught_up_ms(self) -> float | None:
        return None if self.catch_up_ms is None else self.to_running_ms + self.catch_up_ms


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of all slots together. Rates are in records per second: incoming, and at most readable."""

    read_bytes_per_s: float
    bandwidth_bytes_per_s: float
    arriving_per_s: float
    reading_per_s: float


def recovery_estimate(
    state_bytes: float, restart_ms: float, interval_ms: float, speeds: Speeds
) -> RecoveryEstimate:
    """`restart_ms` is a recovery without reading state: detect, decide, stop, start.

    On average, half an interval of input is read again, plus what arrives meanwhile.
    """
    slower = min(speeds.read_bytes_per_s, speeds.bandwidth_bytes_per_s)
    check(slower > 0, "data moves", speeds=speeds)
    read_ms = state_bytes / slower * MS_PER_S
    behind_ms = interval_ms / 2 + restart_ms + read_ms
    return RecoveryEstimate(restart_ms, read_ms, _catch_up_ms(behind_ms, speeds))


def _catch_up_ms(behind_ms: float, speeds: Speeds) -> float | None:
    if speeds.arriving_per_s <= 0:
        return 0.0
    spare_per_s = speeds.reading_per_s - speeds.arriving_per_s
    if spare_per_s <= 0:
        return None
    return behind_ms * speeds.arriving_per_s / spare_per_s
