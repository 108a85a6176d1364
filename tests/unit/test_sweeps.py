"""The sweeps of which a commit takes a part: together, the parts of many commits are the whole."""

import ast
from pathlib import Path

import pytest

from tests.sweeps import SHARES, left_out_by

PROJECT = Path(__file__).parents[2]
SWEEP = "tests/near/test_a.py::test_one"
OTHER = "tests/near/test_a.py::test_one_more[0]"


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


def test_a_part_has_each_item_of_an_inner_list_without_a_common_factor() -> None:
    sweep = [f"{SWEEP}[{file}-{way}]" for file in range(20) for way in "abcdef"]

    for commit in range(20):
        part = {*sweep} - left_out_by(sweep, {SWEEP: 5}, str(commit))

        assert {each[-2] for each in part} == {*"abcdef"}
        assert len({each.partition("-")[0] for each in part}) == 20
