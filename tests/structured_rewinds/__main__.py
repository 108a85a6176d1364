"""Rewind real queries by seed, all in one Spark; the exit code says if all came out right.

`--sources kafka` takes queries that read Kafka alone. Kafka and Spark's connector for it come from
Maven Central; without them, give `--sources file rate`.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.brokers.kafka_broker import KafkaBroker, kafka_broker
from tests.java_programs import ProgramMissing
from tests.structured_rewinds.kafka import add_connector
from tests.structured_rewinds.queries import session
from tests.structured_rewinds.rewinds import CELLS, SOURCES, rewind, story_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    options = parser.parse_args()
    spark = session()
    try:
        with broker_for(spark, options.sources) as broker:
            return run(spark, options, broker)
    except ProgramMissing as why:
        parser.error(f"{why}; give --sources file rate")
    finally:
        spark.stop()


@contextmanager
def broker_for(spark: SparkSession, sources: list[str]) -> Iterator[KafkaBroker | None]:
    if "kafka" not in sources:
        yield None
        return
    add_connector(spark)
    with (
        tempfile.TemporaryDirectory(prefix="rewind-kafka-") as directory,
        kafka_broker(Path(directory)) as broker,
    ):
        yield broker


def run(spark: SparkSession, options: argparse.Namespace, broker: KafkaBroker | None) -> int:
    began, cells = time.monotonic(), Counter[str]()
    wrong: list[int] = []
    unfinished: list[int] = []
    done = 0
    for seed in range(options.first, options.first + options.seeds):
        if time.monotonic() - began > options.seconds:
            break
        story = story_of(seed, options.sources)
        home = Path(tempfile.mkdtemp(prefix="rewind-"))
        try:
            ending = rewind(spark, story, home, broker)
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
    figures = {"seeds": done, "wrong": wrong, "unfinished": unfinished}
    wanted = [cell for cell in CELLS if cell[2] in options.sources]
    print(json.dumps({**figures, "cells": len(cells), "of": len(wanted)}))
    return 1 if wrong or unfinished or not done else 0


if __name__ == "__main__":
    sys.exit(main())
