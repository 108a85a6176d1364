"""Rewind real queries by seed, all in one Spark; the exit code says if all came out right."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pyspark.errors import StreamingQueryException

from tests.structured_rewinds.queries import session
from tests.structured_rewinds.rewinds import CELLS, rewind, story_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that")
    options = parser.parse_args()
    began, cells = time.monotonic(), Counter[str]()
    wrong: list[int] = []
    unfinished: list[int] = []
    spark = session()
    done = 0
    for seed in range(options.first, options.first + options.seeds):
        if time.monotonic() - began > options.seconds:
            break
        story = story_of(seed)
        home = Path(tempfile.mkdtemp(prefix="rewind-"))
        try:
            ending = rewind(spark, story, home)
        except StreamingQueryException as error:  # such as a machine too busy to start a worker
            unfinished.append(seed)
            print(f"seed {seed} did not run: {str(error)[:300]}", flush=True)
            continue
        finally:
            shutil.rmtree(home, ignore_errors=True)
        done += 1
        cells[f"{story.store}, {story.operator}, {story.source}"] += 1
        if not ending.is_right:
            wrong.append(seed)
            print(ending, flush=True)
        print(f"{done} seeds, {len(wrong)} wrong, {time.monotonic() - began:.0f} s", flush=True)
    spark.stop()
    figures = {"seeds": done, "wrong": wrong, "unfinished": unfinished}
    print(json.dumps({**figures, "cells": len(cells), "of": len(CELLS)}))
    return 1 if wrong or unfinished or not done else 0


if __name__ == "__main__":
    sys.exit(main())
