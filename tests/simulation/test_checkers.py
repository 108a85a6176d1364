"""Every checker finds its own kind of defect, planted in the engine, within some seeds."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bus.lease import Lease
from pipelines.connectors.files.target import FileTarget
from pipelines.domain.key_groups import Taken
from pipelines.protocol.alignment import BarrierTracker
from pipelines.protocol.commit import AttemptFence, CommitPermit
from pipelines.protocol.coordination import Checkpoint
from pipelines.protocol.retention import SharedFiles
from pipelines.runtime.control import Completed
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.checkpoints.point_files import PointFiles
from pipelines.runtime.master.job_master import JobMaster
from pipelines.runtime.master.start.starting_point import StartingPointChooser
from pipelines.runtime.slot import subtask_building
from pipelines.runtime.subtask import gate_feed
from pipelines.runtime.subtask.snapshots import restoring
from pipelines.runtime.subtask.sources.split_screen import Quarantine
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.simulation import simulated_run
from tests.simulation.campaign import judge
from tests.simulation.checkers import (
    CHECKERS,
    Checker,
    every_cut_is_exact,
    every_point_can_be_restored,
    every_point_stays_whole,
    every_run_has_ended,
    nothing_comes_twice,
    nothing_is_left_open,
    nothing_is_lost,
    nothing_is_seen_early,
    poison_is_set_aside_once,
)
from tests.simulation.circumstances import MODES
from tests.simulation.outside import OutsideWriter, World

pytestmark = pytest.mark.slow

SEEDS = 120
Plant = Callable[[pytest.MonkeyPatch], None]


def barriers_hold_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        subtask_building, "handler_for", lambda options, vertex, ports: BarrierTracker(ports)
    )
    for mode in ("unaligned", "timeout", "cap waits", "cap overtakes", "cap aborts"):
        patch.setitem(MODES, mode, {})


def in_flight_records_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    begin = gate_feed.beginning
    patch.setattr(gate_feed, "beginning", lambda in_flight, watermark: begin((), watermark))


def prepared_output_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "prepared_of", lambda snapshots, read: ())


def lists_stay_with_the_subtasks_of_their_number(patch: pytest.MonkeyPatch) -> None:
    def taken(subtask: int, parallelism: int, kind: Any, held: Any) -> list[Taken]:
        return [Taken(subtask)] if subtask < len(held) else []

    patch.setattr(restoring, "taken_by", taken)


def poison_records_are_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quarantine, "_add", _do_nothing)


def quarantines_are_not_rewound(patch: pytest.MonkeyPatch) -> None:
    """The new run owns their directory, which keeps what the run before set aside."""
    patch.setattr(FileTarget, "_move", _do_nothing)


def sinks_are_not_rewound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StartingPointChooser, "rewind_sinks", _do_nothing)


def a_commit_that_comes_again_counts_again(patch: pytest.MonkeyPatch) -> None:
    commit = OutsideWriter.commit

    def commit_again(self: OutsideWriter, checkpoint_id: Any, names: list[Any]) -> None:
        world: World = self._world
        for name in names:
            if name in world.visible:
                world.names += 1
                world.visible[f"{name}-{world.names}"] = world.visible[name]
        commit(self, checkpoint_id, names)

    patch.setattr(OutsideWriter, "commit", commit_again)


def commits_are_announced_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    finalize = CheckpointHost._finalize

    def announce_first(self: CheckpointHost, effect: Any) -> None:
        if self._attempt is not None:
            permit = CommitPermit(self._attempt.attempt, effect.checkpoint_id)
            self._attempt.broadcast(Completed(permit=permit))
        finalize(self, effect)

    patch.setattr(CheckpointHost, "_finalize", announce_first)


def shared_files_are_needed_by_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedFiles, "needed", property(lambda self: frozenset()))


def files_are_acknowledged_unwritten(patch: pytest.MonkeyPatch) -> None:
    def write_elsewhere(self: Any, location: str, name: str, write: Any) -> Any:
        with tempfile.TemporaryDirectory() as elsewhere:
            return write(Path(elsewhere) / name, name)

    patch.setattr(FileSystemCheckpointStore, "_write", write_elsewhere)


def files_of_failed_checkpoints_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PointFiles, "_discard", _do_nothing)


def points_that_were_given_up_stay(patch: pytest.MonkeyPatch) -> None:
    """If points are hardly ever given up, hundreds of seeds do not find this."""
    patch.setattr(PointFiles, "delete_given_up", _do_nothing)
    patch.setattr(simulated_run.Simulation, "_disk_fails", simulated_run.points_are_often_given_up)


def the_end_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobMaster, "_close", lambda self, status, reason: status)


def one_acknowledgement_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoint, "is_ready", property(lambda self: any(self.snapshots)))


def older_attempts_are_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttemptFence, "admit", _do_nothing)


def replaced_drivers_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "is_current", lambda self, attempt: True)
    patch.setattr(Lease, "check_held", _do_nothing)


FOUND_BY: dict[Plant, int] = {
    sinks_are_not_rewound: 1,
    shared_files_are_needed_by_nobody: 11,
    in_flight_records_are_forgotten: 14,
    barriers_hold_nothing_back: 15,
    prepared_output_is_forgotten: 19,
    quarantines_are_not_rewound: 52,
    points_that_were_given_up_stay: 79,
}
"""Tries first the seed that finds a rare one; if that stops working, the search begins at 0 and
takes much longer: name the seed that it finds."""


@pytest.mark.parametrize(
    ("checker", "plant"),
    [
        (every_cut_is_exact, barriers_hold_nothing_back),
        (every_cut_is_exact, in_flight_records_are_forgotten),
        (every_cut_is_exact, lists_stay_with_the_subtasks_of_their_number),
        (poison_is_set_aside_once, poison_records_are_dropped),
        (poison_is_set_aside_once, quarantines_are_not_rewound),
        (nothing_is_lost, prepared_output_is_forgotten),
        (nothing_comes_twice, sinks_are_not_rewound),
        (nothing_comes_twice, a_commit_that_comes_again_counts_again),
        (nothing_is_seen_early, commits_are_announced_before_the_manifest),
        (every_point_stays_whole, shared_files_are_needed_by_nobody),
        (every_point_stays_whole, files_are_acknowledged_unwritten),
        (every_point_can_be_restored, points_that_were_given_up_stay),
        (nothing_is_left_open, files_of_failed_checkpoints_stay),
        (every_run_has_ended, the_end_is_not_told),
    ],
)
def test_each_checker_finds_the_defect_that_is_planted_for_it(
    monkeypatch: pytest.MonkeyPatch, checker: Checker, plant: Plant
) -> None:
    plant(monkeypatch)

    problems = _problems((checker,), FOUND_BY.get(plant, 0))

    assert any(checker.__name__ in each for each in problems)


@pytest.mark.parametrize(
    "plant", [one_acknowledgement_is_enough, older_attempts_are_heard, replaced_drivers_go_on]
)
def test_the_checkers_find_a_coordinator_that_trusts_too_easily(
    monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    plant(monkeypatch)

    assert any(_problems(CHECKERS))


def test_a_run_that_never_ends_is_reported_as_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointHost, "on_acknowledged", _do_nothing)
    monkeypatch.setattr(simulated_run, "TURNS_MAX", 4_000)

    assert any("NoProgress" in each for each in _problems(()))


def test_a_defect_is_planted_for_every_checker() -> None:
    marks = test_each_checker_finds_the_defect_that_is_planted_for_it.pytestmark  # type: ignore[attr-defined]
    (cases,) = [mark.args[1] for mark in marks if mark.name == "parametrize"]

    assert {checker for checker, _ in cases} == set(CHECKERS)


def _problems(checkers: tuple[Checker, ...], first: int = 0) -> Iterator[str]:
    """Judges lazily: a test that has found its problem simulates no further."""
    for seed in (first, *range(SEEDS)):
        yield from judge(seed, checkers).problems


def _do_nothing(*arguments: Any) -> None:
    """Replaces a step that the engine would forget."""
