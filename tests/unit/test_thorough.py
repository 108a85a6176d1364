"""The slow tests: the table names existing tests, and a plain run leaves out exactly these."""

import ast
from pathlib import Path

import pytest

from tests import conftest
from tests.thorough import (
    KEPT,
    KILLS,
    REPEATED,
    SLOW,
    SLOW_PARAMETERS,
    is_slow,
    runs_slow_tests,
)

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("entry", [*SLOW, *SLOW_PARAMETERS, *REPEATED, *KEPT])
def test_every_entry_exists(entry: str) -> None:
    file, _, test = entry.partition("::")

    assert (PROJECT / file).exists()
    if test:
        module = ast.parse((PROJECT / file).read_text())
        assert test in [node.name for node in module.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("entry", SLOW)
def test_no_entry_lies_within_another(entry: str) -> None:
    assert not is_slow(entry, [other for other in SLOW if other != entry], kept=())


@pytest.mark.parametrize("entry", KEPT)
def test_every_kept_test_lies_within_a_slow_entry(entry: str) -> None:
    assert is_slow(entry, kept=())
    assert not is_slow(entry)


def test_the_plain_run_still_kills_real_processes() -> None:
    assert len(KILLS) >= 5
    assert set(KILLS) <= set(KEPT)


def test_an_entry_covers_its_tests_with_all_parameters_and_nothing_else() -> None:
    slow = ("tests/far", "tests/near/test_a.py", "tests/near/test_b.py::test_one")

    assert is_slow("tests/far/test_c.py::test_x[1/2::3]", slow)
    assert is_slow("tests/near/test_a.py::test_x", slow)
    assert is_slow("tests/near/test_b.py::test_one[tests/far]", slow)
    assert not is_slow("tests/near/test_b.py::test_one_more", slow)
    assert not is_slow("tests/near/test_b.py::test_two[::test_one]", slow)
    assert not is_slow("tests/farther/test_c.py::test_x", slow)


def test_slow_parameters_apply_only_to_their_own_file() -> None:
    assert is_slow("tests/contracts/test_sink.py::test_x[kafka log-2]")
    assert not is_slow("tests/contracts/test_sink.py::test_x[files-2]")
    assert not is_slow("tests/contracts/test_source.py::test_x[kafka log-2]")


def test_a_plain_run_takes_a_fixed_share_of_the_repetitions() -> None:
    test = "tests/near/test_a.py::test_one"
    seeds = [f"{test}[{seed}]" for seed in range(300)]

    run = [seed for seed in seeds if not is_slow(seed, repeated={test: 3})]

    assert 80 <= len(run) <= 120
    assert run == [seed for seed in seeds if not is_slow(seed, repeated={test: 3})]
    assert not any(is_slow(seed, repeated={}) for seed in seeds)


def test_slow_tests_run_only_if_asked_for_required_or_named() -> None:
    assert not runs_slow_tests(asked=False, required=False, named=False)
    assert runs_slow_tests(asked=True, required=False, named=False)
    assert runs_slow_tests(asked=False, required=True, named=False)
    assert runs_slow_tests(asked=False, required=False, named=True)


def test_this_test_was_named_or_is_not_slow(request: pytest.FixtureRequest) -> None:
    config = request.config

    named = not conftest.is_whole_suite(config)
    assert config.option.runs_all >= (named or conftest.REQUIRE_ALL)
    assert config.option.runs_all or not any(is_slow(each.nodeid) for each in request.session.items)
