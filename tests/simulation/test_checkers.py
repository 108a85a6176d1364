"""Every checker finds the defect that it is there for, planted in the engine, within some seeds."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipelines.protocol.barrier_tracking import BarrierTracker
from pipelines.runtime import deployment, gate_feed, restoring
from pipelines.runtime.checkpoint_host import CheckpointHost
from pipelines.runtime.job_master import JobMaster
from pipelines.runtime.point_files import PointFiles
from pipelines.runtime.starting_point import StartingPointChooser
from tests.simulation import simulated_run
from tests.simulation.campaign import judge
from tests.simulation.checkers import (
    CHECKERS,
    Checker,
    every_cut_is_exact,
    every_run_has_ended,
    nothing_comes_twice,
    nothing_is_left_open,
    nothing_is_lost,
)
from tests.simulation.simulated_run import MODES

pytestmark = pytest.mark.slow

SEEDS = 80
Plant = Callable[[pytest.MonkeyPatch], None]


def barriers_hold_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deployment, "handler_for", lambda options, vertex, ports: BarrierTracker(ports))
    patch.setitem(MODES, "unaligned", {})
    patch.setitem(MODES, "timeout", {})


def in_flight_records_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    begin = gate_feed.beginning
    patch.setattr(gate_feed, "beginning", lambda in_flight, watermark: begin((), watermark))


def prepared_output_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "_prepared", lambda snapshots: iter(()))


def sinks_are_not_rewound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StartingPointChooser, "rewind_sinks", _do_nothing)


def files_of_failed_checkpoints_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PointFiles, "_discard", _do_nothing)


def the_end_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobMaster, "_close", lambda self, status, reason: status)


@pytest.mark.parametrize(
    ("checker", "plant"),
    [
        (every_cut_is_exact, barriers_hold_nothing_back),
        (every_cut_is_exact, in_flight_records_are_forgotten),
        (nothing_is_lost, prepared_output_is_forgotten),
        (nothing_comes_twice, sinks_are_not_rewound),
        (nothing_is_left_open, files_of_failed_checkpoints_stay),
        (every_run_has_ended, the_end_is_not_told),
    ],
)
def test_a_checker_finds_the_defect_that_it_is_there_for(
    monkeypatch: pytest.MonkeyPatch, checker: Checker, plant: Plant
) -> None:
    plant(monkeypatch)

    assert any(checker.__name__ in each for each in _problems((checker,)))


def test_a_run_that_never_ends_is_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointHost, "on_acknowledged", _do_nothing)
    monkeypatch.setattr(simulated_run, "TURNS_MAX", 4_000)

    assert any("NoProgress" in each for each in _problems(()))


def test_every_checker_has_a_defect_that_it_finds() -> None:
    marks = test_a_checker_finds_the_defect_that_it_is_there_for.pytestmark  # type: ignore[attr-defined]
    (cases,) = [mark.args[1] for mark in marks if mark.name == "parametrize"]

    assert {checker for checker, _ in cases} == set(CHECKERS)


def _problems(checkers: tuple[Checker, ...]) -> Iterator[str]:
    """Lazily: whoever has found what it looks for simulates no further."""
    for seed in range(SEEDS):
        yield from judge(seed, checkers).problems


def _do_nothing(*arguments: Any) -> None:
    """In place of a step that the engine would forget."""
