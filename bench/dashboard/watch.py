"""What does it cost to watch other people's Structured Streaming queries?

Expected: an event is one row of about a kilobyte in a bulk insert, some 0.2 ms with its checks, so
one process takes in 3,000 to 5,000 a second. The page of all pipelines reads one row for each query
regardless of its history: some tens of milliseconds for a hundred. The doctor lists a directory
once and opens two small files per batch: one or two seconds for 10,000. The listener formats one
text for each batch, outside the batch's own thread: well below 1 %.

`events_per_s` measures reports of 200 events through the API's own view, in one process, with a
database that already has the history. `p95_ms` is that of the page of all pipelines, with all of
that history. `doctor_s` is the time to read and judge a checkpoint directory with `--batches`
batches. `listener_share` is how much longer a real query's batches take with a listener. It is the
median over groups of blocks (without, with, with, without); `listener_interval` is its confidence
interval. Both are null with `--groups 0`. `listener_cpu_ms` is the additional processor time for a
batch of `batch_ms` in the driver's Python, including the server that takes the reports.
"""

import os
import tempfile
from pathlib import Path

import django

from bench.benchmark import Benchmark, at_least, at_most

QUERIES = 100
BATCHES = 10_000
ROUNDS = 40
GROUPS = 25
BARS = (
    at_least("events_per_s", 2_000),
    at_most("p95_ms", 200),
    at_most("doctor_s", 5),
    at_most("listener_share", 0.01),
)


def main() -> None:
    benchmark = Benchmark("watch", __doc__)
    benchmark.options.add_argument("--queries", type=int, default=QUERIES)
    benchmark.options.add_argument("--batches", type=int, default=BATCHES)
    benchmark.options.add_argument("--rounds", type=int, default=ROUNDS)
    benchmark.options.add_argument("--groups", type=int, default=GROUPS)
    options = benchmark.options.parse()
    with tempfile.TemporaryDirectory(prefix="ftdash-bench-") as home:
        # Django reads its settings once, when it loads, so the home has to come first.
        os.environ |= {
            "FTDASH_HOME": home,
            "FTDASH_WATCH_ROOTS": home,
            "DJANGO_SETTINGS_MODULE": "ftdash.settings",
        }
        django.setup()
        from bench.dashboard import watched_queries

        fields = watched_queries.measure(options.queries, options.batches, options.rounds)
        fields |= watched_queries.doctor(Path(home) / "checkpoint", options.batches)
        fields |= watched_queries.listener_share(Path(home), options.groups)
        benchmark.report(fields, BARS)


if __name__ == "__main__":
    main()
