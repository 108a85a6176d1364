"""Mutants: each row of ARCHITECTURE.md has some, each can be applied, and trials judge fairly."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.__main__ import chosen_of, every_mutant
from tests.mutants.guarantees import PROJECT, Guarantee, guarantees
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS
from tests.mutants.trial import Copies, Outcome, copies

EVERY = every_mutant()
CODE = "def answer():\n    return 42\n"
TESTS = """
import pytest
import code_under_test


@pytest.fixture
def answer():
    return code_under_test.answer()


def test_answer():
    assert code_under_test.answer() == 42


def test_with_fixture(answer):
    assert answer == 42
"""


@pytest.mark.parametrize("row", guarantees(), ids=lambda row: row.claim[:40])
def test_each_guarantee_names_the_tests_that_fail_for_its_mutants(row: Guarantee) -> None:
    assert row.claim in MUTANTS, "a row of the table needs a mutant"
    assert set(row.tests) == {mutant.test_file for mutant in MUTANTS[row.claim]}


def test_every_mutant_belongs_to_a_claim_of_the_guarantees() -> None:
    assert MUTANTS.keys() - {row.claim for row in guarantees()} == set()


@pytest.mark.parametrize("mutant", [each.mutant for each in EVERY], ids=lambda m: m.file)
def test_a_mutant_changes_the_program_and_still_parses(mutant: Mutant) -> None:
    changed = mutant.applied_to((PROJECT / mutant.file).read_text())

    if not mutant.file.endswith(".py"):  # Python cannot parse it
        assert mutant.old.strip() != mutant.new.strip()
        return
    assert ast.dump(ast.parse(changed)) != program_in(mutant.file)


@pytest.mark.parametrize("test", sorted({each.mutant.test for each in EVERY}))
def test_the_test_of_a_mutant_exists(test: str) -> None:
    file, _, name = test.partition("[")[0].partition("::")

    assert name in names_in(file)


def test_the_parameters_of_a_mutants_test_exist() -> None:
    """A test that pytest does not find ends a run of mutants before the first one."""
    named = sorted({each.mutant.test for each in EVERY if "[" in each.mutant.test})
    command = (sys.executable, "-m", "pytest", "-n", "0", "-q", "--collect-only", *named)
    collected = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert collected.returncode == 0, collected.stdout[-2_000:] + collected.stderr[-2_000:]
    assert set(named) <= set(collected.stdout.splitlines())


def test_a_mutant_must_match_exactly_once_in_its_file() -> None:
    mutant = Mutant("a.py", "x", "y", "test_a.py::test_a")

    for source in ("", "x x"):
        with pytest.raises(ValueError, match=r"a\.py holds 'x' "):
            mutant.applied_to(source)


def test_the_shares_of_many_commits_cover_every_mutant_and_one_commit_a_share() -> None:
    shares = [chosen_of(EVERY, None, 10, str(commit)) for commit in range(200)]

    assert all(abs(len(share) - len(EVERY) / 10) < 1 for share in shares)
    assert {each for share in shares for each in share} == set(EVERY)
    assert chosen_of(EVERY, None, 10, "7") == shares[7]
    assert chosen_of(EVERY, None, 1, "7") == EVERY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "test", "outcome"),
    [
        ("return 41", "test_answer", Outcome.KILLED),
        ("return 6 * 7", "test_answer", Outcome.SURVIVED),
        ("return unknown", "test_answer", Outcome.BROKEN),
        ("raise ValueError", "test_with_fixture", Outcome.BROKEN),
        ("return = 42", "test_answer", Outcome.BROKEN),
        ("return 41", "test_question", Outcome.BROKEN),
    ],
    ids=["fails", "passes", "no such name", "fixture", "syntax", "no such test"],
)
def test_only_a_test_that_fails_kills(copy: Copies, new: str, test: str, outcome: Outcome) -> None:
    mutant = Mutant("code_under_test.py", "return 42", new, f"test_it.py::{test}")

    trial = copy.trial(mutant)

    assert trial.outcome is outcome, trial.why


@pytest.mark.slow
def test_a_trial_leaves_the_copy_as_it_was_and_never_touches_the_project(
    copy: Copies, project: Path
) -> None:
    copy.trial(Mutant("code_under_test.py", "return 42", "return 41", "test_it.py::test_answer"))

    baseline = copy.unmutated(["test_it.py::test_answer", "test_it.py::test_with_fixture"])

    assert baseline.failing == {}
    assert baseline.longest_s.keys() == {"test_it::test_answer", "test_it::test_with_fixture"}
    assert (project / "code_under_test.py").read_text() == CODE


@pytest.fixture(scope="module")
def copy(project: Path) -> Iterator[Copies]:
    with copies(1, project) as of_project:
        yield of_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_project(tmp_path_factory.mktemp("project"))


def small_project(home: Path) -> Path:
    (home / "code_under_test.py").write_text(CODE)
    (home / "test_it.py").write_text(TESTS)
    (home / "pytest.ini").write_text("[pytest]\naddopts = -p no:django\n")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=home, check=True)
    return home


@cache
def program_in(file: str) -> str:
    return ast.dump(ast.parse((PROJECT / file).read_text()))


@cache
def names_in(file: str) -> set[str]:
    module = ast.parse((PROJECT / file).read_text())
    return {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
