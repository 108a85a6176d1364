"""`python -m tests.simulation --seeds N [--first S]`: simulate, check, and name every bad seed."""

import argparse
import os
import sys
import time

from tests.simulation.campaign import Verdict, campaign


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate runs, one a seed, and check them.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="side by side")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    began = time.monotonic()
    bad = 0
    for verdict in campaign(seeds, options.processes):
        bad += _told(verdict)
    print(f"{len(seeds)} seeds, {bad} bad, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if bad else 0


def _told(verdict: Verdict) -> bool:
    if verdict.problems:
        again = f"python -m tests.simulation --seeds 1 --first {verdict.seed}"
        print(f"seed {verdict.seed} ({verdict.mode}): {'; '.join(verdict.problems)}\n  {again}")
    return bool(verdict.problems)


if __name__ == "__main__":
    sys.exit(main())
