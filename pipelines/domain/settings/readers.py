"""Reads the text of a setting: durations, counts, choices; a ValueError says what is valid.

A reader sees one value alone; `parsing` checks combinations of settings.
"""

import math
import re
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from enum import StrEnum
from typing import TypeVar

from pipelines.domain.errors import Rejected

_UNIT_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIT_BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_DURATION = re.compile(r"([0-9]{1,12})\s*(ms|s|min|h|d)")
MOST_DAYS = 3_650
"""The longest duration. To say never, leave the setting out or write off."""
MOST_MEMORY_BYTES = 1 << 40
_SIZE = re.compile(r"([0-9]{1,12})\s*(b|kb|mb|gb)")

MOST_COUNT = (1 << 31) - 1
"""Flink's counts are Java's int; its default of attempts-before-reset-backoff is the largest."""

SettingValue = bool | int | float | str | None
Value = TypeVar("Value", bound=SettingValue)
Choice = TypeVar("Choice", bound=StrEnum)
Reader = Callable[[str], Value]
"""Reads a value; raises ValueError saying what it expects ("expected ...")."""
_DECLARED = "declared"


@dataclass(frozen=True, slots=True)
class Definition:
    """A setting as its group declares it."""

    key: str
    default: str
    read: Reader[SettingValue]
    help: str
    changes_live: bool = False  # may change during a run

    def parse(self, text: str) -> SettingValue:
        """Raises Rejected naming key, value and what was expected."""
        try:
            return self.read(_printable(text.strip()))
        except ValueError as error:
            raise Rejected(f"The setting {self.key} cannot be {text!r}: {error}.") from error


def setting(
    key: str, default: str, read: Reader[Value], help: str, *, changes_live: bool = False
) -> Value:
    """Declares a field of a group: the value that `read` makes of the text given under `key`."""
    declared = Definition(key, default, read, help, changes_live)
    return field(default=read(default), metadata={_DECLARED: declared})


def definition_of(declared: Field[SettingValue]) -> Definition:
    """Returns the definition of a field made with `setting`."""
    definition: Definition = declared.metadata[_DECLARED]
    return definition


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected text without line breaks and control characters")
    return text


def duration_ms(text: str) -> int:
    """Read `500 ms`, `1 s`, `10 min`, `2 h` or `1 d`; a bare 0 needs no unit."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("expected a whole number with a unit, such as '500 ms', '1 s' or '10 min'")
    value_ms = int(match[1]) * _UNIT_MS[match[2]]
    if value_ms > MOST_DAYS * _UNIT_MS["d"]:
        raise ValueError(f"expected at most {MOST_DAYS} d")
    return value_ms


def duration_of_at_least(least_ms: int) -> Reader[int]:
    def read(text: str) -> int:
        value_ms = duration_ms(text)
        if value_ms < least_ms:
            raise ValueError(f"expected at least {least_ms} ms")
        return value_ms

    return read


def duration_within(least_ms: int, most_ms: int) -> Reader[int]:
    def read(text: str) -> int:
        value_ms = duration_ms(text)
        if not least_ms <= value_ms <= most_ms:
            raise ValueError(f"expected {least_ms} ms to {most_ms} ms")
        return value_ms

    return read


def duration_or_off(least_ms: int) -> Reader[int | None]:
    """Returns None for off."""
    read_duration = duration_of_at_least(least_ms)
    return lambda text: None if text.lower() == "off" else read_duration(text)


def count_of_at_least(least: int) -> Reader[int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= MOST_COUNT:
            raise ValueError(f"expected a whole number from {least} to {MOST_COUNT}")
        return int(text)

    return read


def count_within(least: int, most: int) -> Reader[int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return int(text)

    return read


def memory_of_at_least(least_bytes: int) -> Reader[int]:
    """`64 mb`, `1 gb`; units are powers of 1024, as in Flink."""

    def read(text: str) -> int:
        match = _SIZE.fullmatch(text.lower())
        size = int(match[1]) * _UNIT_BYTES[match[2]] if match else 0
        if not least_bytes <= size <= MOST_MEMORY_BYTES:
            raise ValueError(
                f"expected a size from {least_bytes >> 10} kb to {MOST_MEMORY_BYTES >> 30} gb, such"
                " as '64 mb' or '1 gb'"
            )
        return size

    return read


def bytes_within(least: int, most: int) -> Reader[int]:
    """A size as Flink writes it; 1 kb is 1,024 bytes."""

    def read(text: str) -> int:
        match = _SIZE.fullmatch(text.lower())
        if match is None:
            raise ValueError("expected a whole number with a unit, such as '512 kb' or '5 mb'")
        size = int(match[1]) * _UNIT_BYTES[match[2]]
        if not least <= size <= most:
            raise ValueError(f"expected {least} to {most} bytes")
        return size

    return read


def number_within(least: float, most: float, *, above_least: bool = False) -> Reader[float]:
    bound = f"a number above {least:g}" if above_least else f"a number from {least:g}"

    def read(text: str) -> float:
        value = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else math.nan
        if not least <= value <= most or (above_least and value == least):
            raise ValueError(f"expected {bound} to {most:g}")
        return value

    return read


def no_size_or(size: Reader[int]) -> Reader[int]:
    """Also accepts 0, which needs no unit."""
    return lambda text: 0 if text == "0" else size(text)


def true_or_false(text: str) -> bool:
    choice = {"true": True, "false": False}.get(text.lower())
    if choice is None:
        raise ValueError("expected true or false")
    return choice


def one_of(choices: type[Choice]) -> Reader[Choice]:
    """One value of an enumeration, in any case; dashes and underscores are equal."""
    by_text = {_folded(choice): choice for choice in choices}

    def read(text: str) -> Choice:
        choice = by_text.get(_folded(text))
        if choice is None:
            raise ValueError(f"expected {_listed([str(choice) for choice in choices])}")
        return choice

    return read


def _folded(text: str) -> str:
    return text.upper().replace("_", "-")


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
