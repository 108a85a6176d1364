"""What does it cost to watch the Structured Streaming queries of others?

Expected: an event is one row of about a kilobyte in a bulk insert, some 0.2 ms with its checks, so
that one process takes in 3,000 to 5,000 a second. The page of all pipelines reads one row for each
query, whatever its history is: some tens of milliseconds for a hundred. The doctor lists a
directory once and opens two small files per batch: one or two seconds for 10,000. The listener
formats one text for each batch, outside the batch's own thread: well below 1 %.

`events_per_s`: reports of 200 events through the API's own view, in one process, with a database
that already has the history. `p95_ms`: the page of all pipelines, with all of that history.
`doctor_s`: a checkpoint directory with so many batches is read and judged. `listener_share`: how
much longer the batches of a real query are with a listener than without, the median over groups of
blocks without, with, with, without, and between which two of the groups the true one lies
(`listener_interval`); null if `--groups 0`. `listener_cpu_ms`: how much more processor time a batch
of `batch_ms` takes with it in the driver's Python, the server that takes the reports included.
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
        # Settings are read once, when Django loads: the home comes first.
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
