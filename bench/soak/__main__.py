"""Pipelines under faults for hours: is anything lost, doubled or different, and does anything grow?

A separate installation runs real pipelines between files, Redis, PostgreSQL and Kafka. A seed
decides when each fault comes. A checker that shares no code with the sinks reads the output all the
time and compares it with plain arithmetic. The soak measures the processes every few seconds, and
compares the slope of each figure with its bound.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import django

from bench.drill.__main__ import OWN_SETTINGS
from bench.soak.schedule import Fault
from ftdash.embedded.installation import environment_of
from ftdash.embedded.outcome import end_when_asked
from ftdash.embedded.supervisor import LEDGER_NAME, end_all
from tests.object_server import BUCKET

HOURS = 1.5
NO_FAKETIME = (
    "only Python's clock is stepped: under libfaketime 0.9.10, Python's sleep fails with EINVAL,"
    " also with FAKETIME_DONT_FAKE_MONOTONIC=1"
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="manage.py soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, help=f"how long faults come; default: {HOURS}")
    length.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument("--seed", type=int, default=1, help="of the faults; default: 1")
    parser.add_argument("--least-kinds", type=int, default=0, help="go on until so many have come")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--only", action="append", help="a pipeline; give it several times")
    parser.add_argument("--fault", action="append", help="only this kind; give it several times")
    parser.add_argument("--spark", action="store_true", help="slots in Spark, not as processes")
    parser.add_argument("--keep", action="store_true", help="leave the home, to look into its logs")
    return parser.parse_args()


def main() -> int:
    given = options()
    hours = given.hours if given.hours is not None else HOURS
    seconds = 3600 * hours if given.minutes is None else 60 * given.minutes
    home = Path(tempfile.mkdtemp(prefix="ftdash-soak-"))
    if given.keep:
        print(f"Everything is kept in {home}.", file=sys.stderr)
    # Django reads its settings once, when it loads, so the home has to come first.
    os.environ |= environment_of(home, os.getpid(), os.environ)
    os.environ["FTDASH_STORAGE_ROOTS"] = f"{home},s3://{BUCKET}"
    os.environ["FTDASH_PIPELINE_VARIABLES"] = "FTDASH_DRILL_*"
    left_out = {
        "clocks of C": NO_FAKETIME,
    }
    if not given.spark:
        os.environ["DJANGO_SETTINGS_MODULE"] = OWN_SETTINGS
    django.setup()
    from bench.soak.faults import NO_SPARK
    from bench.soak.flow import KINDS
    from bench.soak.report import fields_of, is_good, table
    from bench.soak.running import SPARK, Length, Soaked, directories_left, soak

    chosen, kinds = given.only or list(KINDS), given.fault or list(Fault)
    for what, names, known in (("pipeline", chosen, KINDS), ("fault", kinds, list(Fault))):
        if unknown := [each for each in names if each not in known]:
            print(
                f"There is no {what} {unknown[0]}; choose of {', '.join(known)}.", file=sys.stderr
            )
            return 2
    if not given.spark:
        left_out[SPARK] = NO_SPARK
    soaked = Soaked(left_out=left_out)
    length = Length(seconds=seconds, kinds_least=given.least_kinds)
    end_when_asked()
    try:
        soak(home, soaked, chosen, kinds, given.seed, length)
    except KeyboardInterrupt:
        soaked.is_interrupted = True
    except Exception as error:  # the results until then are reported all the same
        traceback.print_exc()
        soaked.unfinished.append(f"the soak itself failed: {type(error).__name__}: {error}")
    finally:
        if (home / LEDGER_NAME).exists():
            end_all(home / LEDGER_NAME)
        soaked.left_directories = directories_left(home)
        if not given.keep:
            shutil.rmtree(home, ignore_errors=True)
    fields = fields_of(soaked, given.seed)
    print(json.dumps(fields) if given.json else table(fields))
    return 0 if is_good(fields) else 1


if __name__ == "__main__":
    sys.exit(main())
