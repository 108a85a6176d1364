"""The common part of all benchmarks: options, bars, and one JSON object as the last line.

It owns how an option is refused and how a figure is compared with its bar. Each benchmark decides
for itself what it measures, and how.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Bar:
    """The limit that a field has to reach. None in the field means that it was not measured."""

    field: str
    limit: float
    is_least: bool

    def __str__(self) -> str:
        return f"at {'least' if self.is_least else 'most'} {self.limit:g}"

    def is_missed_by(self, fields: Mapping[str, object]) -> bool:
        """Returns True if the figure, or all of its interval if it has one, misses the bar."""
        return self._sides(fields) == {True}

    def is_open_in(self, fields: Mapping[str, object]) -> bool:
        """Returns True if the figure's interval lies on both sides of the bar."""
        return len(self._sides(fields)) == 2

    def _sides(self, fields: Mapping[str, object]) -> set[bool]:
        interval = fields.get(f"{self.field}_interval")
        ends = (interval["low"], interval["high"]) if isinstance(interval, dict) else ()
        values = [v for v in ends or (fields.get(self.field),) if isinstance(v, int | float)]
        return {value < self.limit if self.is_least else value > self.limit for value in values}


def at_least(field: str, limit: float) -> Bar:
    return Bar(field, limit, is_least=True)


def at_most(field: str, limit: float) -> Bar:
    return Bar(field, limit, is_least=False)


def missed(fields: Mapping[str, object], bars: Sequence[Bar]) -> list[str]:
    return [bar.field for bar in bars if bar.is_missed_by(fields)]


def undecided(fields: Mapping[str, object], bars: Sequence[Bar]) -> list[str]:
    return [bar.field for bar in bars if bar.is_open_in(fields)]


class Benchmark:
    """One benchmark under its name on the command line.

    SIGTERM ends it like Ctrl-C, so that the processes that it started end with it.
    """

    def __init__(self, name: str, question: str | None) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.options = OptionParser(name, question)
        self._name = name
        self._load = round(os.getloadavg()[0], 2)  # the load from other work on this machine

    def report(self, fields: Fields, bars: Sequence[Bar] = ()) -> None:
        """Prints the last line.

        `missed` names the fields that do not reach their bar, `undecided` those whose interval lies
        on both sides of it.
        """
        judged = {
            "bars": {bar.field: str(bar) for bar in bars},
            "missed": missed(fields, bars),
            "undecided": undecided(fields, bars),
        }
        machine = {"cores": os.cpu_count(), "load_before": self._load}
        print(json.dumps({"benchmark": self._name, **fields, **judged, **machine}))


class OptionParser(argparse.ArgumentParser):
    """Refuses an option that the benchmark does not know, in one sentence."""

    def __init__(self, name: str, question: str | None) -> None:
        super().__init__(
            prog=f"manage.py bench {name}",
            description=question,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # always on
        self._name = name

    def parse(self, given: Sequence[str] | None = None) -> argparse.Namespace:
        options, unknown = self.parse_known_args(given)
        if unknown:
            known = ", ".join(self._known()) or "no options"
            self._refuse(f"does not know {unknown[0]}; it knows {known}")
        return options

    def error(self, message: str) -> NoReturn:
        self._refuse(f"cannot start: {message}")

    def _known(self) -> list[str]:
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        names = [action.option_strings[-1] for action in shown if action.option_strings]
        return sorted(name for name in names if name != "--help")

    def _refuse(self, why: str) -> NoReturn:
        self.exit(2, f"The benchmark {self._name!r} {why}.\n")


def progress(text: str) -> None:
    """Shows the progress to a person who waits, never on the stream of the last line."""
    print(text, file=sys.stderr, flush=True)
