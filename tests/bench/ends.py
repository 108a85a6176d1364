"""How much of a bare client's speed is left when what goes out is exactly once?

From Kafka to Kafka, into PostgreSQL and into Redis, 100 bytes a record, two of everything,
checkpoints every second; against a bare loop of the same client over the same records, in turn.
Expected: a record costs the engine about as much again as the client takes for it, so about 0.5
of the loop through Kafka. Rows for PostgreSQL carry two columns more, and wait in the snapshot as
files before they are copied: 0.6 to 0.8 of COPY. A pipelined loop in Redis spends its time in the
client and one command a row; scripts spend it in the server: about as fast.

The servers are started here; FTDASH_BENCH_KAFKA (host:port), FTDASH_BENCH_POSTGRES and
FTDASH_BENCH_REDIS (URLs) name others. What a machine lacks is not measured, with the reason.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench.benchmark import Benchmark, Fields, at_least, progress
from tests.bench.end import End, EndMissing
from tests.bench.kafka_end import kafka_end
from tests.bench.postgres_end import postgres_end
from tests.bench.redis_end import redis_end

BARS = (
    at_least("kafka_ratio", 0.5),
    at_least("postgres_ratio", 0.6),
    at_least("redis_ratio", 0.6),
)
OpenEnd = Callable[[Path, int], AbstractContextManager[End]]
ENDS: dict[str, OpenEnd] = {"kafka": kafka_end, "postgres": postgres_end, "redis": redis_end}
RECORDS = {"kafka": 3_000_000, "postgres": 3_000_000, "redis": 1_000_000}
"""About ten seconds and ten checkpoints on the reference machine."""


def main() -> None:
    benchmark = Benchmark("ends", __doc__)
    benchmark.options.add_argument("--end", choices=(*ENDS, "all"), default="all")
    benchmark.options.add_argument("--records", type=int, help="of each end that is measured")
    benchmark.options.add_argument("--pairs", type=int, default=3)
    options = benchmark.options.parse()
    chosen = ENDS if options.end == "all" else (options.end,)
    benchmark.report(measure(chosen, options.pairs, options.records), BARS)


def measure(ends: Iterable[str], pairs: int, records: int | None = None) -> Fields:
    fields: Fields = {}
    for name in ends:
        fields |= _measured(name, pairs, records or RECORDS[name])
    return fields


def _measured(name: str, pairs: int, records: int) -> Fields:
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ftdash-bench-") as directory,
            ENDS[name](Path(directory), records) as end,
        ):
            return {f"{name}_{field}": value for field, value in _in_turn(name, end, pairs)}
    except EndMissing as why:
        progress(f"{name} is not measured: {why}")
        return {f"{name}_ratio": None, f"{name}_not_measured": str(why)}


def _in_turn(name: str, end: End, pairs: int) -> Iterable[tuple[str, object]]:
    """Each pair begins with the other one."""
    bare: list[float] = []
    ours: list[float] = []
    checkpoints: list[int] = []
    for pair in range(pairs):
        if pair % 2 == 0:
            bare.append(end.bare())
        measured = end.exactly_once()
        ours.append(measured.records_per_s)
        checkpoints.append(measured.checkpoints)
        if pair % 2 == 1:
            bare.append(end.bare())
        progress(f"{name}, pair {pair}: {ours[-1]:,.0f} of {bare[-1]:,.0f} records/s")
    ratios = [rate / limit for rate, limit in zip(ours, bare, strict=True)]
    yield "ratio", round(statistics.median(ratios), 3)
    yield "ratios", [round(ratio, 3) for ratio in ratios]
    yield "records_per_s", round(statistics.median(ours))
    yield "bare_records_per_s", round(statistics.median(bare))
    yield "records", end.records
    yield "checkpoints", min(checkpoints)


if __name__ == "__main__":
    main()
