"""Rewind real queries by seed, all in one Spark; the exit code says if all came out right."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.structured_rewinds.queries import session
from tests.structured_rewinds.rewinds import CELLS, rewind, story_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that")
    options = parser.parse_args()
    began, wrong, cells = time.monotonic(), [], Counter[str]()
    spark = session()
    done = 0
    for seed in range(options.first, options.first + options.seeds):
        if time.monotonic() - began > options.seconds:
            break
        story = story_of(seed)
        home = Path(tempfile.mkdtemp(prefix="rewind-"))
        ending = rewind(spark, story, home)
        shutil.rmtree(home)
        done += 1
        cells[f"{story.store}, {story.operator}, {story.source}"] += 1
        if not ending.is_right:
            wrong.append(seed)
            print(ending, flush=True)
        print(f"{done} seeds, {len(wrong)} wrong, {time.monotonic() - began:.0f} s", flush=True)
    spark.stop()
    print(json.dumps({"seeds": done, "wrong": wrong, "cells": len(cells), "of": len(CELLS)}))
    return 1 if wrong or not done else 0


if __name__ == "__main__":
    sys.exit(main())
