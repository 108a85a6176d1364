"""The table of scenarios: each one is caused by a fault of the soak or shown by a test."""

import ast
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from bench.drill.staging import Staged
from bench.soak.changes import changes_of
from bench.soak.ends import Line
from bench.soak.fault_context import UNALIGNED
from bench.soak.faults import DO, FROM_REDIS
from bench.soak.running import Soaked, cause, settings_of
from bench.soak.scenarios import GAME_DAYS, SCENARIOS
from bench.soak.schedule import Fault, Planned
from ftdash.gameday.injection import DRIVER_MOMENTS, MOMENTS, RECOVERY_MOMENTS
from ftdash.gameday.models import Fault as GameDayFault
from pipelines.domain.faults import FaultPoint
from pipelines.domain.settings.parsing import parse_settings

TESTS = Path(__file__).parents[1]

NUMBERS = {
    "ALG": (1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13),
    "COO": tuple(range(1, 12)),
    "STO": (1, 2, 4, 5, 7, 8, 9, 10, 11),
    "REC": (1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 13),
    "RSC": (1, 3, 4, 5),
    "SNK": (1, 2, 4, 5, 7, 8, 9, 10, 12, 13),
    "LOD": (1, 2, 3, 4),
    "BAD": (1,),
    "SEC": (1,),
}
"""The numbers in use: those that are missing were merged into others."""

NEVER_POISONED = ("kafka-postgres", "files-files", "documents-files")
SHOWN = sorted({test for scenario in SCENARIOS.values() for test in scenario.tests})


def test_every_scenario_has_a_fault_of_the_soak_or_a_test() -> None:
    wanted = {f"{group}-{number}" for group, numbers in NUMBERS.items() for number in numbers}

    assert set(SCENARIOS) == wanted
    assert [name for name, each in SCENARIOS.items() if not (each.faults or each.tests)] == []


@pytest.mark.parametrize("test", SHOWN)
def test_every_test_that_a_scenario_names_exists(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text())

    assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_every_fault_of_a_game_day_is_a_fault_of_the_soak() -> None:
    assert set(GAME_DAYS) == {fault.name for fault in GameDayFault}


def test_a_kill_at_a_moment_comes_at_the_same_moment_in_the_soak() -> None:
    moments = {**MOMENTS, **DRIVER_MOMENTS, **RECOVERY_MOMENTS}
    named = {fault.name: moment.value for fault, moment in moments.items()}

    soaked = {name: GAME_DAYS[name].value.rpartition("killed")[2].lstrip("-") for name in named}

    assert soaked == {name: "" if moment == "now" else moment for name, moment in named.items()}
    assert set(soaked.values()) == {"", *FaultPoint}


def test_every_kind_of_fault_can_be_caused_and_belongs_to_a_scenario() -> None:
    in_particular = {f for name, each in SCENARIOS.items() if name != "LOD-2" for f in each.faults}

    assert set(DO) == set(Fault)
    assert set(Fault) - in_particular == set()


@pytest.mark.parametrize("pipeline", [*FROM_REDIS, *NEVER_POISONED])
def test_a_start_accepts_the_settings_of_a_pipeline_after_each_change(pipeline: str) -> None:
    given = settings_of(pipeline)

    changes = changes_of(given)

    for change in changes:
        parse_settings(given | change)
        assert change not in changes_of(given | change)
    assert len(changes) >= 3
    may_overtake = any(change[UNALIGNED] == "true" for change in changes)
    assert may_overtake == (pipeline not in FROM_REDIS)


def test_a_soak_goes_on_if_a_file_is_deleted_just_before_its_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damage(*_: object) -> None:
        raise FileNotFoundError("chk-7")

    monkeypatch.setattr("bench.soak.running.changes.go_on", lambda staged: "")
    monkeypatch.setattr("bench.soak.running.faults.do", damage)
    line = create_autospec(Line, instance=True)
    line.name = "counts"
    soaked = Soaked(lines=[line])
    planned = Planned(at_s=1, fault=Fault.CHECKPOINT_DAMAGED, target="counts", length_s=2)

    cause(soaked, planned, create_autospec(Staged, instance=True), seed=1)

    assert soaked.refused == ["checkpoint-damaged of counts for 2 s: chk-7"]
    assert not soaked.done
