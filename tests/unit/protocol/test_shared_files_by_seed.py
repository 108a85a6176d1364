"""Shared files under random failures, restarts and races, by seed: the two machines alone.

This is a level below the simulator, which uses real files: 300 seeds of 120 steps take seconds.
Every subtask refers to a random part of the files that it may use. The checkers know nothing of
the machines. After every step, each retained checkpoint must find its files. Once no checkpoint is
under way and the directory was listed, every file left must be one that a checkpoint refers to.
"""

import random
from dataclasses import dataclass, field

import pytest

from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId
from pipelines.protocol.retention import CompletedIncrements, SharedFiles, shared_name

SUBTASKS = 3
STEPS = 120


@pytest.mark.parametrize("seed", range(300))
def test_no_retained_checkpoint_loses_a_file_and_no_unused_file_stays(seed: int) -> None:
    run = Run(random.Random(seed))

    for _ in range(STEPS):
        run.step()
        run.check_retained_points_are_whole()

    run.end_everything()
    run.check_retained_points_are_whole()
    run.check_nothing_unused_is_left()


@dataclass
class Subtask:
    """A subtask that refers to a random part of its base's files and writes some new ones."""

    index: int
    reusable: CompletedIncrements[frozenset[str]] = field(default_factory=CompletedIncrements)


@dataclass
class Underway:
    checkpoint_id: CheckpointId
    confirmed_id: CheckpointId
    files: dict[int, frozenset[str]] = field(default_factory=dict)  # acknowledged, by subtask
    is_cut: set[int] = field(default_factory=set)


class Run:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.retained_count = rng.choice([1, 2, 3])
        self.concurrent_max = rng.choice([1, 3, 4])
        self.directory: set[str] = set()
        self.retained: dict[CheckpointId, frozenset[str]] = {}  # the manifests
        self.machine = SharedFiles({})
        self.next_id = 1
        self.attempt = Attempt(1)
        self.underway: dict[CheckpointId, Underway] = {}
        self.subtasks = [Subtask(index) for index in range(SUBTASKS)]
        self.late_notices: list[tuple[Subtask, CheckpointId]] = []

    def step(self) -> None:
        match self.rng.random():
            case p if p < 0.25:
                self.trigger()
            case p if p < 0.65:
                self.upload()
            case p if p < 0.72:
                self.abort()
            case p if p < 0.85:
                self.deliver_a_notice()
            case p if p < 0.87:
                self.restart_attempt()
            case p if p < 0.89:
                self.restart_driver()
            case p if p < 0.92:
                self.zombie_writes()
            case _:
                self.list_directory()

    def trigger(self) -> None:
        if len(self.underway) >= self.concurrent_max:
            return
        checkpoint_id = CheckpointId(self.next_id)
        self.next_id += 1
        self.underway[checkpoint_id] = Underway(checkpoint_id, self.machine.confirmed_id)
        self.machine.on_triggered(checkpoint_id)

    def upload(self) -> None:
        """One subtask cuts and acknowledges; its notice of completion may come much later."""
        open_ones = [(u, s) for u in self.underway.values() for s in self.subtasks]
        open_ones = [(u, s) for u, s in open_ones if s.index not in u.is_cut]
        if not open_ones:
            return
        underway, subtask = self.rng.choice(open_ones)
        subtask.reusable.on_completed(underway.confirmed_id)
        base = subtask.reusable.base or frozenset()
        kept = frozenset(name for name in sorted(base) if self.rng.random() < 0.7)
        new = frozenset(
            shared_name(underway.checkpoint_id, self.attempt, f"{subtask.index}-{n}")
            for n in range(self.rng.randint(0, 2))
        )
        underway.is_cut.add(subtask.index)
        self.directory |= new
        if self.rng.random() < 0.1:
            return  # written, and never acknowledged
        subtask.reusable.on_written(underway.checkpoint_id, kept | new)
        underway.files[subtask.index] = kept | new
        if len(underway.files) == SUBTASKS:
            self.complete(underway)

    def complete(self, underway: Underway) -> None:
        files = frozenset().union(*underway.files.values())
        for older in [n for n in self.underway if n < underway.checkpoint_id]:
            self.end(self.underway[older])  # subsumed
        del self.underway[underway.checkpoint_id]
        self.retained[underway.checkpoint_id] = files
        self.delete(self.machine.on_completed(underway.checkpoint_id, files))
        while len(self.retained) > self.retained_count:
            oldest = min(self.retained)
            del self.retained[oldest]
            self.delete(self.machine.on_discarded(oldest))
        self.late_notices += [(subtask, underway.checkpoint_id) for subtask in self.subtasks]

    def end(self, underway: Underway) -> None:
        del self.underway[underway.checkpoint_id]
        files = frozenset().union(*underway.files.values())
        self.delete(self.machine.on_aborted(underway.checkpoint_id, files))
        for subtask in self.subtasks:
            subtask.reusable.on_aborted(underway.checkpoint_id)

    def abort(self) -> None:
        if self.underway:
            self.end(self.rng.choice(list(self.underway.values())))

    def deliver_a_notice(self) -> None:
        if self.late_notices:
            subtask, checkpoint_id = self.late_notices.pop(0)
            subtask.reusable.on_completed(checkpoint_id)

    def restart_attempt(self) -> None:
        """Restarts all subtasks, each from the newest retained checkpoint or without its files."""
        for underway in list(self.underway.values()):
            self.end(underway)
        self.attempt = Attempt(self.attempt + 1)
        newest = self.retained.get(max(self.retained, default=NO_CHECKPOINT), frozenset())
        self.late_notices = []
        self.subtasks = [
            Subtask(index, CompletedIncrements(own_part(newest, index)))
            if self.rng.random() < 0.7
            else Subtask(index)
            for index in range(SUBTASKS)
        ]

    def restart_driver(self) -> None:
        """The driver loses all it knew, and a new one finds the manifests."""
        self.underway = {}
        self.machine = SharedFiles(self.retained)
        self.restart_attempt()

    def zombie_writes(self) -> None:
        """A slot of an ended attempt finishes an upload of a checkpoint that has ended."""
        ended = [n for n in range(1, self.next_id) if n not in self.underway]
        if ended:
            self.directory.add(
                shared_name(CheckpointId(self.rng.choice(ended)), Attempt(0), "late")
            )

    def list_directory(self) -> None:
        self.delete(self.machine.on_listed(self.directory))

    def end_everything(self) -> None:
        for underway in list(self.underway.values()):
            self.end(underway)
        self.list_directory()

    def delete(self, names: list[str]) -> None:
        self.directory -= set(names)

    def check_retained_points_are_whole(self) -> None:
        for checkpoint_id, files in self.retained.items():
            assert files <= self.directory, f"checkpoint {checkpoint_id} lost a file"

    def check_nothing_unused_is_left(self) -> None:
        assert self.directory == set().union(*self.retained.values())


def own_part(files: frozenset[str], index: int) -> frozenset[str]:
    return frozenset(name for name in files if name.split("-")[2] == str(index))
