"""What do checkpoints every second cost? The same run with them and without, in turn.

Expected: a checkpoint of 1,000 keys writes a few kilobytes on another thread, so about 1 %; one of
a million keys copies 25 MB, once a second, so about 1 % as well. Without checkpoints there are no
modes, so one run without them is what all modes of a round are held against.
"""

import statistics
from collections.abc import Sequence

from tests.bench.benchmark import Benchmark, Fields, at_most, missed, progress
from tests.bench.modes import add_mode_option, modes_of
from tests.bench.page_views import (
    EVERY_SECOND,
    NEVER,
    Start,
    Work,
    add_work_options,
    on_spark,
    run_once,
    work_of,
)

BARS = (at_most("slowdown", 0.03),)
WITHOUT = "aligned"  # any mode will do where nothing is checkpointed


def main() -> None:
    benchmark = Benchmark("overhead", __doc__)
    add_work_options(benchmark.options)
    add_mode_option(benchmark.options)
    benchmark.options.add_argument("--pairs", type=int, default=5)
    options = benchmark.options.parse()
    fields = measure(work_of(options), modes_of(options), options.pairs)
    benchmark.report({**fields, "mode": options.mode}, BARS)


def measure(work: Work, modes: Sequence[str], pairs: int, start: Start = on_spark) -> Fields:
    """All figures of one mode are those of `by_mode`; above them, the worst of all modes."""
    slower: dict[str, list[float]] = {mode: [] for mode in modes}
    for number in range(pairs):
        rates = _round(work, modes, number, start)
        for mode in modes:
            slower[mode].append(1.0 - rates[mode] / rates[NEVER])
            progress(f"pair {number}, {mode}: {slower[mode][-1]:.3f} slower")
    by_mode = {mode: _of_mode(slower[mode]) for mode in modes}
    worst = max(by_mode.values(), key=lambda fields: float(str(fields["slowdown"])))
    return {
        "key": work.key,
        "backend": work.backend,
        "records": work.records,
        "slowdown": worst["slowdown"],
        "pairs": worst["pairs"],
        "by_mode": by_mode,
    }


def _round(work: Work, modes: Sequence[str], number: int, start: Start) -> dict[str, float]:
    """Records per second by mode; each round begins with another one."""
    turns = [NEVER, *modes]
    first = number % len(turns)
    return {
        turn: (
            run_once(work, WITHOUT, NEVER, start)
            if turn == NEVER
            else run_once(work, turn, EVERY_SECOND, start)
        ).records_per_s
        for turn in turns[first:] + turns[:first]
    }


def _of_mode(slower: list[float]) -> Fields:
    fields: Fields = {
        "slowdown": round(statistics.median(slower), 4),
        "pairs": [round(each, 4) for each in slower],
    }
    return {**fields, "missed": missed(fields, BARS)}


if __name__ == "__main__":
    main()
