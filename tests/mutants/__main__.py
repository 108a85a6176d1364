"""`python -m tests.mutants` applies each mutant in turn and shows that its test fails.

`--row N` takes one row of ARCHITECTURE.md's table; `--share 10 --commit SHA` takes a tenth of all
mutants. All their tests must first pass without a mutant.
"""

import argparse
import os
import sys
import time
from collections import ChainMap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.commit_share import share_of
from tests.mutants.guarantees import guarantees
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS
from tests.mutants.trial import Baseline, Outcome, Trial, copies


@dataclass(frozen=True, slots=True)
class Numbered:
    """A mutant and the number of its row, counted from 1."""

    row: int
    claim: str
    mutant: Mutant


def main() -> int:
    options = _options()
    chosen = chosen_of(every_mutant(), options.row, options.share, options.commit)
    if options.list:
        for each in chosen:
            print(f"{_place(each)}\n    {each.mutant.test}")
        return 0
    began_s = time.monotonic()
    with copies(options.processes) as copy, ThreadPoolExecutor(options.processes) as pool:
        tests = sorted({each.mutant.test for each in chosen})
        parts = [part for n in range(options.processes) if (part := tests[n :: options.processes])]
        baselines = list(pool.map(copy.unmutated, parts))
        failing = {test: why for baseline in baselines for test, why in baseline.failing.items()}
        for test, why in failing.items():
            print(f"does not pass without a mutant: {test}: {_first_line(why)}")
        if failing:
            return 1
        print(f"{len(tests)} tests pass without a mutant, {time.monotonic() - began_s:.0f} s")
        usual = Baseline({}, dict(ChainMap(*(baseline.longest_s for baseline in baselines))))
        trials = pool.map(lambda each: copy.trial(each.mutant, usual.usual_s(each.mutant)), chosen)
        killed = sum(_told(*pair) for pair in zip(chosen, trials, strict=True))
    print(f"{killed} of {len(chosen)} mutants killed, {time.monotonic() - began_s:.0f} s")
    return 0 if killed == len(chosen) else 1


def every_mutant() -> list[Numbered]:
    """Returns all mutants in the order of the table."""
    return [
        Numbered(row, guarantee.claim, mutant)
        for row, guarantee in enumerate(guarantees(), 1)
        for mutant in MUTANTS.get(guarantee.claim, ())
    ]


def chosen_of(mutants: list[Numbered], row: int | None, share: int, commit: str) -> list[Numbered]:
    """Returns one mutant in `share`; `commit` decides which, so that each mutant has its turn."""
    return [each for each in share_of(mutants, share, commit) if row in (None, each.row)]


def _told(each: Numbered, trial: Trial) -> bool:
    print(f"{trial.outcome.value} {trial.seconds:5.1f} s  {_place(each)}", flush=True)
    if trial.outcome is not Outcome.KILLED:
        print(f"    {each.mutant.old!r} -> {each.mutant.new!r}")
        print(f"    {each.mutant.test}: {_first_line(trial.why) or 'passes'}", flush=True)
    return trial.outcome is Outcome.KILLED


def _place(each: Numbered) -> str:
    return f"{each.row:2} {each.claim[:60]}: {each.mutant.file}"


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Break the code; the named tests must fail.")
    parser.add_argument("--row", type=int, help="of the table of guarantees, from 1 (all)")
    parser.add_argument("--share", type=int, default=1, help="run one mutant in so many (1)")
    parser.add_argument("--commit", default="", help="decides which ones a share runs")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="side by side")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
