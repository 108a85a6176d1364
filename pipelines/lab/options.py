"""Declares the options of a lab and the modes that it compares.

It imports little on purpose: commands and pages load it for help and checks, without the engine.
"""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pipelines.domain.errors import Rejected

_MODE = "execution.checkpointing.mode"


@dataclass(frozen=True, slots=True)
class LabMode:
    """If `is_transactional`, rows become visible with their checkpoint, else once written."""

    name: str
    settings: Mapping[str, str]
    is_transactional: bool


MODES = (
    LabMode("at-most-once", {_MODE: "AT_MOST_ONCE"}, True),
    LabMode("at-least-once", {_MODE: "AT_LEAST_ONCE"}, False),
    LabMode("exactly-once", {_MODE: "EXACTLY_ONCE"}, True),
    LabMode(
        "exactly-once-unaligned",
        {_MODE: "EXACTLY_ONCE", "execution.checkpointing.unaligned.enabled": "true"},
        True,
    ),
    LabMode("acked", {_MODE: "ACKED"}, False),
)
"""Each mode has the sink that suits it: a transactional one if the mode can use it."""

MODE_NAMES = tuple(mode.name for mode in MODES)


class LabOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lab. `seed` and `records` alone determine the input and the places of the faults."""

    seed: int = 1
    records: int = 60_000
    parallelism: int = 2
    rate: int = 15_000
    interval_ms: int = 200
    faults: int = 2
    modes: tuple[str, ...] = MODE_NAMES
    has_cost_run: bool = True

    @property
    def chosen(self) -> list[LabMode]:
        return [mode for mode in MODES if mode.name in self.modes]

    @property
    def words(self) -> list[str]:
        """Returns the options of the command that runs this lab."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        words = [w for name, value in numbers.items() for w in (_option(name), str(value))]
        return [
            *words,
            *("--modes", ",".join(self.modes)),
            "--cost" if self.has_cost_run else "--no-cost",
        ]

    def check(self) -> None:
        """Raises Rejected, naming the option."""
        for name, (least, most, _) in NUMBERS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise Rejected(f"{_option(name)} is {value}; give a number from {least} to {most}.")
        unknown = [name for name in self.modes if name not in MODE_NAMES]
        if unknown or not self.modes:
            raise Rejected(
                f"--modes has {', '.join(unknown) or 'nothing'}; choose of {', '.join(MODE_NAMES)}."
            )
        if self.records < self.faults * RECORDS_PER_FAULT_MIN:
            raise Rejected(
                f"--records is {self.records}, too few for {self.faults} faults; give at least"
                f" {self.faults * RECORDS_PER_FAULT_MIN}, or fewer --faults."
            )


RECORDS_PER_FAULT_MIN = 1_000

NUMBERS = {
    "seed": (0, 2**31 - 1, "of the views and of the places where a slot is killed"),
    "records": (1_000, 10_000_000, "page views in the input"),
    "parallelism": (1, 16, "slots, each a process of this machine"),
    "rate": (100, 1_000_000, "views that happen in a second, in the runs with faults"),
    "interval_ms": (10, 60_000, "milliseconds from one checkpoint to the next"),
    "faults": (0, 20, "how often a slot is killed with kill -9, each time at a place in the input"),
}
"""Maps each option to its least value, its greatest value and its help text."""


def add_options(parser: ArgumentParser) -> None:
    defaults = LabOptions()
    for name, (least, most, about) in NUMBERS.items():
        default = getattr(defaults, name)
        text = f"{about} (default {default}, {least} to {most})"
        parser.add_argument(_option(name), type=int, default=default, metavar="N", help=text)
    parser.add_argument(
        "--modes", default=",".join(MODE_NAMES), help="which, with commas between (default: all)"
    )
    parser.add_argument(
        "--cost",
        action=BooleanOptionalAction,
        default=True,
        help="also run each mode undisturbed at full speed, and count its control messages",
    )


def options_of(given: Namespace) -> LabOptions:
    """Raises Rejected, naming the option."""
    numbers = {name: getattr(given, name) for name in NUMBERS}
    modes = tuple(name for name in given.modes.split(",") if name)
    options = LabOptions(**numbers, modes=modes, has_cost_run=given.cost)
    options.check()
    return options


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
