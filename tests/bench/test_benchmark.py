"""The common parts of all benchmarks: bars, refusals in a sentence, one JSON object at the end."""

import json

import pytest

from bench.benchmark import Benchmark, Fields, at_least, at_most, missed, undecided


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ratio": 0.5, "slowdown": 0.03}, []),
        ({"ratio": 0.49, "slowdown": 0.031}, ["ratio", "slowdown"]),
        ({"ratio": None}, []),  # not measured
    ],
)
def test_a_figure_beyond_its_bar_is_named(fields: Fields, expected: list[str]) -> None:
    assert missed(fields, (at_least("ratio", 0.5), at_most("slowdown", 0.03))) == expected


@pytest.mark.parametrize(
    ("low", "high", "is_missed", "is_open"),
    [(0.01, 0.03, False, False), (0.01, 0.09, False, True), (0.04, 0.09, True, False)],
)
def test_a_figure_is_judged_by_its_whole_interval(
    low: float, high: float, is_missed: bool, is_open: bool
) -> None:
    fields: Fields = {"slowdown": 0.05, "slowdown_interval": {"low": low, "high": high}}
    bars = [at_most("slowdown", 0.03)]

    assert missed(fields, bars) == ["slowdown"] * is_missed
    assert undecided(fields, bars) == ["slowdown"] * is_open


def test_the_last_line_is_one_object_with_figures_bars_and_the_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Benchmark("speed", "how fast?").report({"ratio": 0.4}, [at_least("ratio", 0.5)])

    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    machine = {name: told.pop(name) for name in ("cores", "load_before")}
    assert told == {
        "benchmark": "speed",
        "ratio": 0.4,
        "bars": {"ratio": "at least 0.5"},
        "missed": ["ratio"],
        "undecided": [],
    }
    assert machine["cores"] > 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--keys", "5"], "The benchmark 'speed' does not know --keys; it knows --pairs.\n"),
        (
            ["--pairs", "many"],
            "The benchmark 'speed' cannot start: argument --pairs: invalid int value: 'many'.\n",
        ),
    ],
)
def test_an_unknown_option_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], given: list[str], sentence: str
) -> None:
    benchmark = Benchmark("speed", "how fast?")
    benchmark.options.add_argument("--pairs", type=int)

    with pytest.raises(SystemExit):
        benchmark.options.parse(given)

    assert capsys.readouterr().err == sentence


def test_a_benchmark_accepts_json_although_its_last_line_always_is_json() -> None:
    assert Benchmark("speed", "how fast?").options.parse(["--json"]).json
