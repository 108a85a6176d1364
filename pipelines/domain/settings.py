"""The settings of a run: Flink's keys, what they mean here, and what is not supported yet.

One table, `DEFINITIONS`, holds key, default and help; pages and commands show it as it stands.
Where a default differs from Flink's the help text says why. Parsing is strict: an unknown key or a
bad value is refused by name before anything starts. Decides nothing about when a checkpoint runs.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

import msgspec

from pipelines.domain.errors import Rejected

MAX_PARALLELISM_LIMIT = 1 << 15
"""Flink's bound on key groups; they are stored as 16 bits."""

_UNIT_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|min|h|d)")


class CheckpointingMode(StrEnum):
    EXACTLY_ONCE = "EXACTLY_ONCE"


class RestartStrategy(StrEnum):
    NONE = "none"
    FIXED_DELAY = "fixed-delay"


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings; the defaults are those of the table."""

    checkpoint_interval_ms: int
    checkpoint_timeout_ms: int
    min_pause_ms: int
    max_concurrent_checkpoints: int
    tolerable_failed_checkpoints: int
    retained_checkpoints: int
    checkpointing_mode: CheckpointingMode
    restart_strategy: RestartStrategy
    restart_attempts: int
    restart_delay_ms: int
    heartbeat_timeout_ms: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Settings":
        """Raises Rejected naming an unknown key and its closest neighbour, or a bad value."""
        for key in given:
            _check_known(key)
        values = {d.field: d.parse(given.get(d.key, d.default)) for d in DEFINITIONS}
        return msgspec.convert(values, cls)


Reader = Callable[[str], int | str]
"""Reads a value; raises ValueError saying what it expects ("expected ...")."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One row of the table; `field` is the attribute of Settings that it fills."""

    key: str
    field: str
    default: str
    read: Reader
    help: str

    def parse(self, text: str) -> int | str:
        try:
            return self.read(text.strip())
        except ValueError as error:
            raise Rejected(f"The setting {self.key} cannot be {text!r}: {error}.") from error


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Raises Rejected unless every subtask owns at least one key group."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise Rejected(
            f"The maximum parallelism cannot be {max_parallelism};"
            f" choose 1 to {MAX_PARALLELISM_LIMIT}."
        )
    if not 1 <= parallelism <= max_parallelism:
        raise Rejected(
            f"The parallelism cannot be {parallelism}; choose 1 to {max_parallelism},"
            " the maximum parallelism of this pipeline."
        )


def duration_ms(text: str) -> int:
    """Read `500 ms`, `1 s`, `10 min`, `2 h` or `1 d`; a bare 0 needs no unit."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("expected a whole number with a unit, such as '500 ms', '1 s' or '10 min'")
    return int(match[1]) * _UNIT_MS[match[2]]


def _duration_of_at_least(least_ms: int) -> Reader:
    def read(text: str) -> int:
        value_ms = duration_ms(text)
        if value_ms < least_ms:
            raise ValueError(f"expected at least {least_ms} ms")
        return value_ms

    return read


def _count_of_at_least(least: int) -> Reader:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
            raise ValueError(f"expected a whole number of at least {least}")
        return int(text)

    return read


def _only_one_at_a_time(text: str) -> int:
    if text != "1":
        raise ValueError("only 1 is supported, checkpoints run one after the other")
    return 1


def _mode(text: str) -> str:
    if text.upper() != CheckpointingMode.EXACTLY_ONCE:
        raise ValueError("only EXACTLY_ONCE is supported")
    return text.upper()


def _restart_strategy(text: str) -> str:
    if text not in (RestartStrategy.NONE, RestartStrategy.FIXED_DELAY):
        raise ValueError("expected fixed-delay or none")
    return text


def _check_known(key: str) -> None:
    known = [definition.key for definition in DEFINITIONS]
    if key in known:
        return
    closest = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {closest[0]}?" if closest else "; no known setting is similar to it."
    raise Rejected(f"There is no setting {key!r}{hint}")


_CHECKPOINTING = "execution.checkpointing."
_FIXED_DELAY = "restart-strategy.fixed-delay."

DEFINITIONS = (
    Definition(
        _CHECKPOINTING + "interval",
        "checkpoint_interval_ms",
        "1 s",
        _duration_of_at_least(10),
        "Time from one periodic checkpoint to the next. Flink has no default and so takes none;"
        " here a pipeline without checkpoints is never what was meant.",
    ),
    Definition(
        _CHECKPOINTING + "timeout",
        "checkpoint_timeout_ms",
        "10 min",
        _duration_of_at_least(10),
        "A checkpoint or savepoint that is not complete after this time fails.",
    ),
    Definition(
        _CHECKPOINTING + "min-pause",
        "min_pause_ms",
        "0",
        _duration_of_at_least(0),
        "Least time from the end of one checkpoint to the start of the next periodic one.",
    ),
    Definition(
        _CHECKPOINTING + "max-concurrent-checkpoints",
        "max_concurrent_checkpoints",
        "1",
        _only_one_at_a_time,
        "How many checkpoints may be under way at once. Only 1 is supported.",
    ),
    Definition(
        _CHECKPOINTING + "tolerable-failed-checkpoints",
        "tolerable_failed_checkpoints",
        "0",
        _count_of_at_least(0),
        "Failed checkpoints in a row that are tolerated; one more and the run restarts.",
    ),
    Definition(
        _CHECKPOINTING + "num-retained",
        "retained_checkpoints",
        "3",
        _count_of_at_least(1),
        "Completed checkpoints that are kept. Flink keeps 1; with 3, recovery can fall back to an"
        " older one when the files of the newest are damaged.",
    ),
    Definition(
        _CHECKPOINTING + "mode",
        "checkpointing_mode",
        "EXACTLY_ONCE",
        _mode,
        "Whether an operator waits for the barriers of all inputs. Only EXACTLY_ONCE is supported.",
    ),
    Definition(
        "restart-strategy.type",
        "restart_strategy",
        "fixed-delay",
        _restart_strategy,
        "What follows a failure: fixed-delay restarts, none lets the run fail. Flink's default,"
        " exponential-delay, is not supported.",
    ),
    Definition(
        _FIXED_DELAY + "attempts",
        "restart_attempts",
        "10",
        _count_of_at_least(0),
        "Restarts before the run fails. Flink allows 1, so a second machine lost in the same week"
        " ends the run; 10 lets a long run live and still ends one that cannot.",
    ),
    Definition(
        _FIXED_DELAY + "delay",
        "restart_delay_ms",
        "100 ms",
        _duration_of_at_least(0),
        "Time to wait before a restart. Flink waits 1 s; here a restart itself takes less than"
        " that, so the wait would be most of the outage.",
    ),
    Definition(
        "heartbeat.timeout",
        "heartbeat_timeout_ms",
        "10 s",
        _duration_of_at_least(100),
        "A slot that is silent for this long is taken for dead. Flink waits 50 s. A killed process"
        " is noticed at once by its closed connection; this is for one that hangs.",
    ),
)
