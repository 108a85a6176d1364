"""The conclusions of `demo --check` from its comparison."""

import dataclasses
import json

import pytest

from ftdash.embedded.outcome import CheckOutcome, Comparison

EXACT = Comparison(rows=10, missing=0, duplicated=0, different=0)


def test_only_two_exact_sinks_are_exact() -> None:
    outcome = CheckOutcome().compared(10, {"files": EXACT, "SQL": EXACT})

    assert outcome.is_exact
    assert outcome.verdict == "exact"
    assert outcome.rows_expected == 10
    assert outcome.sinks == {"files": 10, "SQL": 10}


@pytest.mark.parametrize("fault", ["missing", "duplicated", "different"])
@pytest.mark.parametrize("sink", ["files", "SQL"])
def test_one_wrong_row_in_one_sink_is_named(fault: str, sink: str) -> None:
    wrong = Comparison(**{"rows": 10, "missing": 0, "duplicated": 0, "different": 0, fault: 1})

    outcome = CheckOutcome().compared(10, {"files": EXACT, "SQL": EXACT, sink: wrong})

    assert not outcome.is_exact
    assert f"1 {fault}" in outcome.verdict
    assert outcome.verdict.startswith(f"Of 10 rows, {sink}:")
    assert getattr(outcome, fault) == 1


def test_a_comparison_of_nothing_proves_nothing() -> None:
    empty = Comparison(rows=0, missing=0, duplicated=0, different=0)

    assert not CheckOutcome().compared(0, {"files": empty}).is_exact
    assert not CheckOutcome().compared(10, {}).is_exact


def test_an_interrupted_check_is_not_exact_and_reports_its_progress() -> None:
    outcome = dataclasses.replace(CheckOutcome(slots_killed=1), verdict="It did not recover.")

    assert not outcome.is_exact
    assert json.loads(json.dumps(outcome.as_json())) == {
        "verdict": "It did not recover.",
        "rows_expected": 0,
        "missing": 0,
        "duplicated": 0,
        "different": 0,
        "checkpoints_completed": 0,
        "slots_killed": 1,
        "drivers_killed": 0,
        "restores": 0,
        "recovery_ms": [],
        "files_output": "",
        "sql_output": "",
        "sinks": {},
        "seconds": 0.0,
    }
