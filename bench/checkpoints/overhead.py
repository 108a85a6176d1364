"""What do checkpoints every second cost? The same run with them and without, in pairs.

Expected: a checkpoint of 1,000 keys writes a few kilobytes on another thread, so about 1 %. One of
a million keys copies 25 MB once a second, so about 1 % too. Without checkpoints there are no modes,
so a pair is a run without them, one of each mode, one of each again, and one without (`pairs.py`).

`slowdown` uses the wall clock, which other programs on the machine affect. `more_processor` uses
the processor time of the run's own processes, which they affect far less. A bar is missed or met
only if the whole interval around a figure lies on one side of it, and `undecided` otherwise.
"""

import statistics
from collections.abc import Sequence
from functools import partial

from bench.benchmark import Benchmark, Fields, at_most, missed, progress, undecided
from bench.page_views import (
    EVERY_SECOND,
    NEVER,
    Start,
    Work,
    add_mode_option,
    add_work_options,
    modes_of,
    on_spark,
    run_once,
    work_of,
)
from bench.pairs import Pair, described, mean_rate, median_interval, run_pairs
from bench.whole_run import Measured

BARS = (at_most("slowdown", 0.03), at_most("more_processor", 0.03))
WITHOUT = "aligned"  # without checkpoints, any mode will do
PAIRS = 6  # the fewest whose interval reaches 95 %

Runs = Pair[Measured, Measured]


def main() -> None:
    benchmark = Benchmark("overhead", __doc__)
    add_work_options(benchmark.options)
    add_mode_option(benchmark.options)
    benchmark.options.add_argument("--pairs", type=int, default=PAIRS)
    options = benchmark.options.parse()
    fields = measure(work_of(options), modes_of(options), options.pairs)
    benchmark.report({**fields, "mode": options.mode}, BARS)


def measure(work: Work, modes: Sequence[str], pairs: int, start: Start = on_spark) -> Fields:
    """`by_mode` has the figures of each mode; the top level repeats those of the slowest one."""
    found = run_pairs(
        pairs,
        limit=partial(_run, work, NEVER, start),
        ours={mode: partial(_run, work, mode, start) for mode in modes},
        rate=lambda run: run.records_per_s,
    )
    by_mode = {mode: _of_mode(mode, found) for mode in modes}
    worst = max(by_mode.values(), key=lambda fields: float(str(fields["slowdown"])))
    return {
        "key": work.key,
        "backend": work.backend,
        "records": work.records,
        **worst,
        **described(found),
        "by_mode": by_mode,
    }


def slowdown(mode: str, pair: Runs) -> float:
    without = mean_rate([run.records_per_s for run in pair.limits])
    return 1.0 - mean_rate([run.records_per_s for run in pair.ours[mode]]) / without


def more_processor(mode: str, pair: Runs) -> float:
    without = sum(run.processor_s for run in pair.limits)
    return sum(run.processor_s for run in pair.ours[mode]) / without - 1.0


def _run(work: Work, mode: str, start: Start) -> Measured:
    if mode == NEVER:
        measured = run_once(work, WITHOUT, NEVER, start)
    else:
        measured = run_once(work, mode, EVERY_SECOND, start)
    took = f"{measured.records_per_s:,.0f} records/s, {measured.processor_s:.1f} s of the processor"
    progress(f"{mode}: {took}")
    return measured


def _of_mode(mode: str, pairs: Sequence[Runs]) -> Fields:
    fields: Fields = {}
    for measure_pair in (slowdown, more_processor):
        name, values = measure_pair.__name__, [measure_pair(mode, pair) for pair in pairs]
        fields |= {
            name: round(statistics.median(values), 4),
            f"{name}_interval": median_interval(values),
            f"{name}_pairs": [round(value, 4) for value in values],
        }
    return {**fields, "missed": missed(fields, BARS), "undecided": undecided(fields, BARS)}


if __name__ == "__main__":
    main()
