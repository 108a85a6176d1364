"""How fast is a keyed count, exactly once, checkpointed every second, against the machine's limit?

Expected by a sketch: parsing alone is 60 % of the limit program's work here, and counts of 1,000
keys are combined before the exchange, so at least 0.5. With a million keys every record crosses the
exchange and takes one more index lookup, so at least 0.3. Modes differ only in their work at a
barrier, so by a few percent; in mode at most once, records wait in memory for a checkpoint. Each
pair is the limit, every mode, every mode again, and the limit again (`pairs.py`). With
`--with-peers` Flink SQL, Structured Streaming and Pathway count the same files after each pair.
"""

import statistics
from collections.abc import Sequence
from functools import partial

from bench.benchmark import Bar, Benchmark, Fields, at_least, missed, progress
from bench.page_views import (
    EVERY_SECOND,
    Measured,
    Start,
    Work,
    add_mode_option,
    add_work_options,
    modes_of,
    on_spark,
    run_once,
    work_of,
)
from bench.pairs import Pair, described, mean_rate, run_pairs
from bench.peers.peer_runs import NO_PEERS, PEERS, PeerRuns
from bench.speed.limit import limit_records_per_s

BARS: dict[tuple[str, str], tuple[Bar, ...]] = {
    ("app_id", "hashmap"): (
        at_least("ratio", 0.5),
        at_least("flink_ratio", 10),
        at_least("pathway_ratio", 7),
    ),
    ("user_id", "hashmap"): (at_least("ratio", 0.3), at_least("flink_ratio", 10)),
    ("app_id", "rocksdb"): (),
    ("user_id", "rocksdb"): (at_least("flink_ratio", 3),),
}
"""The bars by key and backend; every mode has to reach them."""


def main() -> None:
    benchmark = Benchmark("pv", __doc__)
    add_work_options(benchmark.options)
    add_mode_option(benchmark.options)
    benchmark.options.add_argument("--pairs", type=int, default=3)
    benchmark.options.add_argument("--with-peers", action="store_true", help="also run peers")
    options = benchmark.options.parse()
    work = work_of(options)
    peers = PeerRuns.installed(PEERS) if options.with_peers else NO_PEERS
    fields = measure(work, modes_of(options), options.pairs, peers)
    benchmark.report({**fields, "mode": options.mode}, BARS[work.key, work.backend])


def measure(
    work: Work, modes: Sequence[str], pairs: int, peers: PeerRuns, start: Start = on_spark
) -> Fields:
    """`by_mode` has the figures of each mode; the top level repeats those of the slowest one."""

    def limit() -> float:
        rate = limit_records_per_s(work.directory, work.key, work.rounds)
        progress(f"the limit: {rate:,.0f} records/s")
        return rate

    def ours(mode: str) -> Measured:
        measured = run_once(work, mode, EVERY_SECOND, start)
        progress(f"{mode}: {measured.records_per_s:,.0f} records/s")
        return measured

    found: list[Pair[float, Measured]] = []
    for _ in range(pairs):
        found += run_pairs(1, limit, {mode: partial(ours, mode) for mode in modes}, rate=float)
        peers.run_all(work)
    limits = [mean_rate(pair.limits) for pair in found]
    bars = BARS[work.key, work.backend]
    by_mode = {mode: _of_mode([p.ours[mode] for p in found], limits, peers, bars) for mode in modes}
    least = min(by_mode.values(), key=lambda fields: float(str(fields["ratio"])))
    return {
        "key": work.key,
        "backend": work.backend,
        "records": work.records,
        **{name: value for name, value in least.items() if name != "missed"},
        "limit_records_per_s": round(statistics.median(limits)),
        **described(found),
        "by_mode": by_mode,
        "peers": peers.described(),
    }


def _of_mode(
    runs: list[tuple[Measured, Measured]],
    limits: list[float],
    peers: PeerRuns,
    bars: Sequence[Bar],
) -> Fields:
    rates = [mean_rate([run.records_per_s for run in pair]) for pair in runs]
    ratios = [rate / limit for rate, limit in zip(rates, limits, strict=True)]
    fields: Fields = {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "records_per_s": round(statistics.median(rates)),
        "checkpoints": min(run.checkpoints for pair in runs for run in pair),
        **peers.ratios(rates),
    }
    return {**fields, "missed": missed(fields, bars)}


if __name__ == "__main__":
    main()
