"""How much of a bare client's speed is left if the output is exactly once?

It measures runs from Kafka to Kafka, into PostgreSQL and into Redis, with 100 bytes a record, two
of everything, and checkpoints every second. It compares them in pairs (`pairs.py`) with a bare loop
of the same client over the same records. Every run lasts at least ten seconds and three
checkpoints, or it is repeated with more records.
Expected: a record costs the engine about as much as the client, so Kafka reaches about 0.5 of the
loop. Rows for PostgreSQL have one more column, and also go to a file of the snapshot:
0.6 to 0.8 of the COPY alone. A pipelined loop in Redis spends its time in the client and in one
command a row; scripts spend it in the server: about as fast.

The benchmark starts the servers; FTDASH_BENCH_KAFKA (host:port), FTDASH_BENCH_POSTGRES and
FTDASH_BENCH_REDIS (URLs) name others. If a machine does not have a server, the report says why it
is not measured.
"""

import math
import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from bench.benchmark import Benchmark, Fields, at_least, progress
from bench.ends.end import End, EndMissing
from bench.ends.kafka_end import kafka_end
from bench.ends.postgres_end import postgres_end
from bench.ends.redis_end import redis_end
from bench.pairs import described, mean_rate, run_pairs
from bench.whole_run import Measured

BARS = (
    at_least("kafka_ratio", 0.5),
    at_least("postgres_ratio", 0.6),
    at_least("redis_ratio", 0.6),
    *(at_least(f"{name}_seconds", 10) for name in ("kafka", "postgres", "redis")),
    *(at_least(f"{name}_checkpoints", 3) for name in ("kafka", "postgres", "redis")),
)
OpenEnd = Callable[[Path, int], AbstractContextManager[End]]
ENDS: dict[str, OpenEnd] = {"kafka": kafka_end, "postgres": postgres_end, "redis": redis_end}
RECORDS = {"kafka": 3_000_000, "postgres": 20_000_000, "redis": 1_000_000}
"""The records of the first try: about ten seconds on the reference machine."""

LEAST_S, LEAST_CHECKPOINTS = 10.0, 3
"""The least of every run that counts: a shorter one measures the start, not the pace."""

LARGER_AT_MOST = 3
MARGIN = 1.3


class TooShort(Exception):
    """A run was too short to measure anything; `factor` times as many records would do."""

    def __init__(self, name: str, measured: Measured) -> None:
        by_time = LEAST_S / measured.seconds
        by_checkpoints = LEAST_CHECKPOINTS / max(1, measured.checkpoints)
        self.factor = MARGIN * max(by_time, by_checkpoints)
        took = f"{measured.seconds:.1f} s and {measured.checkpoints} checkpoints"
        super().__init__(f"{name}: {took} are too few; again with {self.factor:.1f} times as much")


def main() -> None:
    benchmark = Benchmark("ends", __doc__)
    benchmark.options.add_argument("--end", choices=(*ENDS, "all"), default="all")
    benchmark.options.add_argument("--records", type=int, help="default: ten seconds of them")
    benchmark.options.add_argument("--pairs", type=int, default=3)
    options = benchmark.options.parse()
    chosen = ENDS if options.end == "all" else (options.end,)
    benchmark.report(measure(chosen, options.pairs, options.records), BARS)


def measure(ends: Iterable[str], pairs: int, records: int | None = None) -> Fields:
    """Without `records`, a run has enough for at least ten seconds and three checkpoints."""
    fields: Fields = {}
    for name in ends:
        fields |= _measured(name, pairs, records) if records else _long_enough(name, pairs)
    return fields


def _long_enough(name: str, pairs: int) -> Fields:
    records = RECORDS[name]
    for _ in range(LARGER_AT_MOST):
        try:
            return _measured(name, pairs, records, is_judged=True)
        except TooShort as short:
            progress(str(short))
            records = math.ceil(records * short.factor)
    return _measured(name, pairs, records)


def _measured(name: str, pairs: int, records: int, *, is_judged: bool = False) -> Fields:
    """Raises TooShort, if that is judged."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ftdash-bench-") as directory,
            ENDS[name](Path(directory), records) as end,
        ):
            found = _in_turn(name, end, pairs, is_judged=is_judged)
            return {f"{name}_{field}": value for field, value in found}
    except EndMissing as why:
        progress(f"{name} is not measured: {why}")
        return {f"{name}_ratio": None, f"{name}_not_measured": str(why)}


def _in_turn(name: str, end: End, pairs: int, *, is_judged: bool) -> Iterable[tuple[str, object]]:
    """Raises TooShort, if that is judged."""

    def exactly_once() -> Measured:
        measured = end.exactly_once()
        progress(f"{name}: {measured.records_per_s:,.0f} records/s")
        if is_judged and is_too_short(measured):
            raise TooShort(name, measured)
        return measured

    found = run_pairs(pairs, end.bare, {name: exactly_once}, rate=float)
    bare = [mean_rate(pair.limits) for pair in found]
    runs = [run for pair in found for run in pair.ours[name]]
    rates = [mean_rate([run.records_per_s for run in pair.ours[name]]) for pair in found]
    ratios = [ours / limit for ours, limit in zip(rates, bare, strict=True)]
    yield "ratio", round(statistics.median(ratios), 3)
    yield "ratios", [round(ratio, 3) for ratio in ratios]
    yield "records_per_s", round(statistics.median(rates))
    yield "bare_records_per_s", round(statistics.median(bare))
    yield "records", end.records
    yield "checkpoints", min(run.checkpoints for run in runs)
    yield "seconds", round(min(run.seconds for run in runs), 1)
    yield from described(found).items()


def is_too_short(measured: Measured) -> bool:
    return measured.seconds < LEAST_S or measured.checkpoints < LEAST_CHECKPOINTS


if __name__ == "__main__":
    main()
