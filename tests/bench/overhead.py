"""What do checkpoints every second cost? The same run with them and (all but) without, in pairs.

Expected: a checkpoint of 1,000 keys writes a few kilobytes on another thread, so about 1 %.
"""

import argparse
import json
import statistics
import sys

from tests.bench.events import event_files
from tests.bench.pv import ROUNDS, run_once

NEVER = "1 h"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", choices=("app_id", "user_id"), default="app_id")
    parser.add_argument("--rounds", type=int, help="times 10 million records")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    directory, rounds = event_files(), options.rounds or ROUNDS[options.key]
    pairs = []
    for number in range(options.pairs):
        order = ("1 s", NEVER) if number % 2 == 0 else (NEVER, "1 s")
        rates = {i: run_once(directory, options.key, rounds, i)[0] for i in order}
        pairs.append(1.0 - rates["1 s"] / rates[NEVER])
        print(f"pair {number}: {pairs[-1]:.3f} slower", file=sys.stderr)
    print(
        json.dumps(
            {
                "benchmark": "overhead",
                "key": options.key,
                "slowdown": round(statistics.median(pairs), 4),
                "pairs": [round(pair, 4) for pair in pairs],
            }
        )
    )


if __name__ == "__main__":
    main()
