"""How fast are the queries of Nexmark, are they right, and do they stay exact under `kill -9`?

By default it measures speed (`speed.py`), exactly once and checkpointed every second. With
`--with-peers`, it measures Flink SQL and Structured Streaming too. `--check` compares the answers
with Flink's (`check.py`). `--kills` kills slots and drivers (`kills.py`). You can give `--query`
several times.
"""

from bench.benchmark import Benchmark
from bench.nexmark import check, kills, speed
from bench.nexmark.kills import Kills
from bench.nexmark.peers import NotMeasured
from bench.nexmark.runs import HOSTS, Events, known_queries

SPEED = Events(20_000_000, 100_000)
KILLED = Events(300_000, 5_000)
"""The number of events for each query, and of those in a second of event time."""


def main() -> None:
    benchmark = Benchmark("nexmark", __doc__)
    options = benchmark.options
    options.add_argument("--query", action="append", help="one query; may be given several times")
    options.add_argument("--events", type=int, help="how many events each query gets")
    options.add_argument("--per-s", type=int, help="events in a second of event time")
    options.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    options.add_argument("--host", choices=HOSTS, default="spark", help="of slots and driver")
    options.add_argument("--pairs", type=int, default=3, help="runs of ours, or pairs with Flink")
    options.add_argument("--least-s", type=float, help="seconds that our run takes at least")
    options.add_argument("--with-peers", action="store_true", help="also run peers")
    options.add_argument("--check", action="store_true", help="compare the answers with Flink's")
    options.add_argument("--kills", nargs="?", type=int, const=5, help="kill -9 so many processes")
    options.add_argument("--rate", type=int, default=20_000, help="under kills, events a second")
    options.add_argument("--seed", type=int, default=1, help="of the kills")
    given = options.parse()
    try:
        queries = known_queries(given.query)
    except ValueError as error:
        options.error(str(error))
    begin, backend = HOSTS[given.host], given.backend

    def events(default: Events) -> Events:
        return Events(given.events or default.count, given.per_s or default.per_s)

    if given.check:
        try:
            fields = check.measure(queries, events(check.CHECKED))
        except NotMeasured as why:
            options.error(str(why))
        benchmark.report(fields, check.BARS)
    elif given.kills:
        killed = Kills(events(KILLED), given.rate, given.kills, given.seed, backend=backend)
        fields = kills.measure(queries, killed, begin)
        benchmark.report({**fields, "host": given.host}, kills.BARS)
    else:
        least_s = speed.LEAST_S if given.least_s is None else given.least_s
        work = speed.Work(events(SPEED), backend, given.pairs, given.with_peers, least_s)
        fields = speed.measure(queries, work, begin)
        benchmark.report({**fields, "host": given.host}, speed.BARS[backend])


if __name__ == "__main__":
    main()
