"""A commit takes a part of each sweep, and the parts of many commits are the whole sweep."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.sweeps import SHARES, left_out_by

PROJECT = Path(__file__).parents[2]
SWEEP = "tests/near/test_a.py::test_one"
OTHER = "tests/near/test_a.py::test_one_more[0]"
OF_ONE_LIST = {
    "tests/processes/test_replaced_drivers.py::"
    "test_a_stopped_driver_is_replaced_and_changes_nothing_when_it_continues",
    "tests/processes/test_zombies.py::"
    "test_a_stopped_and_replaced_slot_is_refused_when_it_continues",
    "tests/unit/nexmark/test_answers.py::"
    "test_a_query_gives_the_same_result_as_duckdb_for_a_million_events",
}
"""Sweeps over moments or queries alone; a commit takes some of them."""


@pytest.mark.parametrize("entry", SHARES)
def test_every_sweep_exists(entry: str) -> None:
    file, _, test = entry.partition("::")

    module = ast.parse((PROJECT / file).read_text())
    assert test in [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    assert SHARES[entry] > 1


def test_a_commit_takes_its_part_of_a_sweep_and_many_commits_take_all_of_it() -> None:
    sweep = [f"{SWEEP}[{seed}]" for seed in range(20)]

    parts = [{*sweep, OTHER} - left_out_by([*sweep, OTHER], {SWEEP: 4}, str(n)) for n in range(50)]

    assert {len(part) for part in parts} == {6}
    assert all(OTHER in part for part in parts)
    assert set().union(*parts) == {*sweep, OTHER}
    assert parts[7] == {*sweep, OTHER} - left_out_by([*sweep, OTHER], {SWEEP: 4}, "7")


@pytest.mark.parametrize(
    ("source", "is_whole"),
    [(pytest.Config.ArgsSource.TESTPATHS, False), (pytest.Config.ArgsSource.ARGS, True)],
)
def test_a_run_of_all_tests_takes_parts_and_a_named_sweep_runs_whole(
    source: pytest.Config.ArgsSource, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FTDASH_WHOLE_LISTS", raising=False)
    sweep, share = next(iter(SHARES.items()))
    deselected: list[object] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    config = SimpleNamespace(option=SimpleNamespace(runs_all=True), args_source=source, hook=hook)
    given = [
        SimpleNamespace(nodeid=f"{sweep}[{n}]", get_closest_marker=lambda name: None)
        for n in range(10 * share)
    ]

    items = list(given)
    conftest.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]

    assert len(items) == (10 * share if is_whole else 10)
    assert len(items) + len(deselected) == len(given)


def test_a_part_has_each_item_of_an_inner_list_without_a_common_factor() -> None:
    sweep = [f"{SWEEP}[{file}-{way}]" for file in range(20) for way in "abcdef"]

    for commit in range(20):
        part = {*sweep} - left_out_by(sweep, {SWEEP: 5}, str(commit))

        assert {each[-2] for each in part} == {*"abcdef"}
        assert len({each.partition("-")[0] for each in part}) == 20


def test_each_part_of_a_sweep_has_every_backend_store_target_and_damage() -> None:
    sweeps = collected_sweeps()

    assert {*sweeps} == {*SHARES}
    for test in {*SHARES} - OF_ONE_LIST:
        sweep = sweeps[test]
        assert len(sweep) >= SHARES[test], test
        for number in range(SHARES[test]):
            part = sweep[number :: SHARES[test]]
            assert names_in(sweep) - names_in(part) == set(), (test, number)


def collected_sweeps() -> dict[str, list[str]]:
    files = sorted({test.partition("::")[0] for test in SHARES})
    words = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-n0", *files]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True)
    sweeps: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if (test := line.partition("[")[0]) in SHARES:
            sweeps[test].append(line)
    return sweeps


def names_in(sweep: list[str]) -> set[str]:
    """Returns the words in the parameters; numbers are seeds, and a part has some."""
    words = {word for each in sweep for word in re.split(r"[-\[\]]", each.partition("[")[2])}
    return {word for word in words if re.search("[a-z]", word)}
