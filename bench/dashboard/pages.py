"""How long does a page take, and how large is it, when a pipeline is wide and the fleet is large?

Expected: a checkpoint at parallelism 64 is 256 subtasks with 12,288 channels. A page reads their
rows once (6 MB of JSON, some 100 ms), and shows the worst of them and a heat map of all; that is
20 to 60 kB compressed. The fleet page reads a fixed number of queries and shows 50 lines.

It requests the pages of the wide pipeline, the page of all pipelines, and the live refresh of each.
The requests are signed in and go through the web server over loopback and with compression, like a
browser's. Between two rounds the run advances by a sample and a checkpoint. `kb` is the traffic
over the network.
"""

import os
import tempfile

import django

from bench.benchmark import Benchmark, at_most

PARALLELISM = 64
PIPELINES = 500
ROUNDS = 20
PAGE_MS, PAGE_KB, REFRESH_KB, FLEET_MS = 300, 300, 30, 200
BARS = (
    at_most("p95_ms", PAGE_MS),
    at_most("kb_max", PAGE_KB),
    at_most("refresh_kb_max", REFRESH_KB),
    at_most("fleet_p95_ms", FLEET_MS),
)


def main() -> None:
    benchmark = Benchmark("pages", __doc__)
    benchmark.options.add_argument("--parallelism", type=int, default=PARALLELISM)
    benchmark.options.add_argument("--pipelines", type=int, default=PIPELINES)
    benchmark.options.add_argument("--rounds", type=int, default=ROUNDS)
    options = benchmark.options.parse()
    with tempfile.TemporaryDirectory(prefix="ftdash-bench-") as home:
        # Django reads its settings once, when it loads, so the home has to come first.
        os.environ |= {"FTDASH_HOME": home, "DJANGO_SETTINGS_MODULE": "ftdash.settings"}
        django.setup()
        from bench.dashboard.wide_pages import measure

        fields = measure(options.parallelism, options.pipelines, options.rounds)
        benchmark.report(fields, BARS)


if __name__ == "__main__":
    main()
