"""Runs the tests of mutants in copies of the project, so that the checkout itself never changes.

A mutant is killed if its test fails. If a module can no longer be imported, or a fixture fails,
that proves nothing about the test.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

from tests.mutants.guarantees import PROJECT
from tests.mutants.mutant import Mutant
from tests.new_home import KEPT_DATABASE

TEST_S = 20.0
SLOWER = 5
"""A test that waits for something that the mutant prevents fails after `TEST_S`, or after this many
times its duration without the mutant if that is longer."""
BASELINE_TEST_S = 300.0
RUN_S = 1_200
DATABASE = "database.sqlite3"
MAKES_TABLES = re.compile(r"/(migrations|models)\b")
PROVES_NOTHING = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")
_SECONDS = itertools.count(1)


class Outcome(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"
    """The test could not run, or fails without the mutant too."""


@dataclass(frozen=True, slots=True)
class Trial:
    outcome: Outcome
    seconds: float
    why: str = ""


class Copies:
    """The copies of the project, one for each trial that runs side by side."""

    def __init__(self, project: Path, home: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._database = home / DATABASE  # has all tables; made once a test needs them
        for number in range(count):
            self._free.put(_copied(project, home / f"copy-{number}"))

    @contextmanager
    def one(self) -> Iterator[Path]:
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)

    def unmutated(self, tests: Sequence[str]) -> "Baseline":
        """Runs all of `tests` in one process, without a mutant."""
        with self.one() as copy:
            database = copy / DATABASE
            report = _Report.of_tests(copy, tests, BASELINE_TEST_S, database)
            if database.exists() and not report.failures and not report.errors:
                database.replace(self._database)
        return Baseline(report.failures | report.errors, report.longest_s)

    def trial(self, mutant: Mutant, usual_s: float = 0.0) -> Trial:
        """Runs the mutant's test. `usual_s` is the test's duration without the mutant."""
        began_s = time.monotonic()
        limit_s = max(TEST_S, SLOWER * usual_s)
        with self.one() as copy, _mutated(copy, mutant):
            database = self._database_for(mutant)
            report = _Report.of_tests(copy, [mutant.test], limit_s, database, "--exitfirst")
        seconds = time.monotonic() - began_s
        if report.errors:
            return Trial(Outcome.BROKEN, seconds, next(iter(report.errors.values())))
        if not report.failures:
            return Trial(Outcome.SURVIVED, seconds)
        why = next(iter(report.failures.values()))
        outcome = Outcome.BROKEN if why.startswith(PROVES_NOTHING) else Outcome.KILLED
        return Trial(outcome, seconds, why)

    def _database_for(self, mutant: Mutant) -> Path | None:
        """Returns None if the trial must make its own tables because the mutant may change them."""
        may_use = self._database.exists() and not MAKES_TABLES.search(mutant.file)
        return self._database if may_use else None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The tests that fail without any mutant, with the reason, and the duration of each test."""

    failing: dict[str, str]
    longest_s: dict[str, float]  # each test's duration with its slowest parameters

    def usual_s(self, mutant: Mutant) -> float:
        return self.longest_s.get(_key_of(mutant.test), 0.0)


@contextmanager
def copies(count: int, project: Path = PROJECT) -> Iterator[Copies]:
    with tempfile.TemporaryDirectory(prefix="ftdash-mutants-") as home:
        yield Copies(project, Path(home), count)


@dataclass(frozen=True, slots=True)
class _Report:
    """The reason why each test failed or could not run; without a report, `errors` has an entry."""

    failures: dict[str, str]
    errors: dict[str, str]
    longest_s: dict[str, float]

    @classmethod
    def of_tests(
        cls,
        copy: Path,
        tests: Sequence[str],
        limit_s: float,
        database: Path | None,
        *options: str,
    ) -> "_Report":
        file = copy / "report.xml"
        file.unlink(missing_ok=True)
        command = (sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider")
        outputs = (f"--timeout={limit_s}", f"--junitxml={file}")
        ran = subprocess.run(
            [*command, *outputs, *options, *tests],
            cwd=copy,
            env=os.environ | {KEPT_DATABASE: str(database or "")},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        if not file.exists():
            return cls({}, {tests[0]: (ran.stdout + ran.stderr)[-500:]}, {})
        cases = list(ElementTree.parse(file).iter("testcase"))
        if not cases:
            return cls({}, {tests[0]: "no test was found"}, {})
        errors = _told(cases, "error") | _told(cases, "skipped")
        return cls(_told(cases, "failure"), errors, _longest(cases))


def _told(cases: Iterable[ElementTree.Element], kind: str) -> dict[str, str]:
    found = ((case, case.find(kind)) for case in cases)
    return {_name_of(case): why.get("message", "") for case, why in found if why is not None}


def _longest(cases: Iterable[ElementTree.Element]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for case in cases:
        test = _name_of(case).partition("[")[0]
        longest[test] = max(longest.get(test, 0.0), float(case.get("time", "0")))
    return longest


def _name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def _key_of(test: str) -> str:
    """Returns a test's name as reports have it, without parameters."""
    file, _, name = test.partition("[")[0].partition("::")
    return f"{file.removesuffix('.py').replace('/', '.')}::{name}"


@contextmanager
def _mutated(copy: Path, mutant: Mutant) -> Iterator[None]:
    """Applies the mutant. The file gets a new time, or Python would reuse older compiled code."""
    file = copy / mutant.file
    original, time_ns = file.read_text(), file.stat().st_mtime_ns
    mutant.apply(copy)
    os.utime(file, ns=(time_ns, time_ns + next(_SECONDS) * 1_000_000_000))
    try:
        yield
    finally:
        file.write_text(original)
        os.utime(file, ns=(time_ns, time_ns))


def _copied(project: Path, to: Path) -> Path:
    """Copies all tracked files as they are in the checkout now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = project / name, to / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return to
