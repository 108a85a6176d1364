"""How long does a page take when the history is long?

Expected: most pages read some dozens of rows by an index and render 50 to 200 kB, which is some
tens of milliseconds; what is over the whole history, as percentiles are, reads 10,000 rows, which
is about 100 ms. So every page is below 200 ms at p95.

Every page in the table of addresses is asked for, signed in, through the web server over loopback.
Between two rounds the run goes on by a sample and a checkpoint, so that nothing is answered that
was made before. `p95_ms` is that of the slowest page. `not_asked` are addresses that gave no page,
and why; `without_values` are those whose arguments the benchmark has no values for: add them to it.
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
        # Settings are read once, when Django loads: the home comes first.
        os.environ |= {"FTDASH_HOME": home, "DJANGO_SETTINGS_MODULE": "ftdash.settings"}
        django.setup()
        from bench.dashboard.dashboard_pages import measure

        benchmark.report(measure(options.checkpoints, options.rounds), BARS)


if __name__ == "__main__":
    main()
