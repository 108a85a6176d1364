"""How long does a page take when the history is long?

Expected: most pages read some dozens of rows through an index and render 50 to 200 kB, which takes
some tens of milliseconds. Figures over the whole history, such as percentiles, read 10,000 rows,
which takes about 100 ms. So every page is below 200 ms at p95.

It requests every page in the table of addresses, signed in, through the web server over loopback.
Between two rounds the run advances by a sample and a checkpoint, so that no answer comes from a
cache. `p95_ms` is that of the slowest page. `not_asked` are addresses that gave no page, and why.
`without_values` are addresses with arguments for which the benchmark has no values; add them to it.
"""

import os
import tempfile

import django

from bench.benchmark import Benchmark, at_most

CHECKPOINTS = 10_000
ROUNDS = 40
BARS = (at_most("p95_ms", 200),)


def main() -> None:
    benchmark = Benchmark("dashboard", __doc__)
    benchmark.options.add_argument("--checkpoints", type=int, default=CHECKPOINTS)
    benchmark.options.add_argument("--rounds", type=int, default=ROUNDS)
    options = benchmark.options.parse()
    with tempfile.TemporaryDirectory(prefix="ftdash-bench-") as home:
        # Django reads its settings once, when it loads, so the home has to come first.
        os.environ |= {"FTDASH_HOME": home, "DJANGO_SETTINGS_MODULE": "ftdash.settings"}
        django.setup()
        from bench.dashboard.dashboard_pages import measure

        benchmark.report(measure(options.checkpoints, options.rounds), BARS)


if __name__ == "__main__":
    main()
