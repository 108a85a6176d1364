"""Damaged files: what a run may publish and build on, over random runs, then by named case."""

import random
from dataclasses import dataclass, field

import pytest

from pipelines.domain.ids import BUILD_ON_NOTHING, NO_CHECKPOINT, Attempt, CheckpointId
from pipelines.protocol.restart import Choice, NoUsablePoint, choose_point
from pipelines.protocol.retention import (
    CompletedIncrements,
    DamagedFiles,
    RetainedPoint,
    RetainedPoints,
    SharedFiles,
    shared_name,
)

SUBTASKS = 2
STEPS = 150
SEEDS = range(300)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_checkpoint_refers_to_known_damage_and_the_second_try_completes(
    seed: int,
) -> None:
    run = Run(random.Random(seed))

    for _ in range(STEPS):
        run.step()
        run.check_nothing_needed_is_forgotten()

    run.end_what_is_under_way()
    run.check_the_next_checkpoints_are_whole()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_recovery_takes_no_damaged_point_while_a_whole_one_exists(seed: int) -> None:
    run = Run(random.Random(seed))

    for _ in range(STEPS):
        run.step()
        run.check_choice()


def test_a_damaged_file_is_remembered_once() -> None:
    files = DamagedFiles(["a"])

    assert files.on_found(["b", "a"]) == ["b"]
    assert files.on_found(["b"]) == []
    assert files.remembered == {"a", "b"}
    assert files.damaged_among(["b", "c"]) == ["b"]


def test_a_checkpoint_builds_on_nothing_while_the_newest_has_a_damaged_file() -> None:
    files = DamagedFiles()
    before = files.must_begin_anew(["a", "b"])
    files.on_found(["a"])

    assert (before, files.must_begin_anew(["a", "b"])) == (False, True)
    assert not files.must_begin_anew(["b"])


def test_after_a_refusal_checkpoints_are_full_until_an_undamaged_one_completes() -> None:
    """The subtasks of the refused checkpoint built on other files than the newest one has."""
    files = DamagedFiles(["a"])
    files.on_refused()

    refused = files.must_begin_anew(["b"])
    files.on_completed(["a", "c"])
    with_damage = files.must_begin_anew(["c"])
    files.on_completed(["c"])

    assert (refused, with_damage, files.must_begin_anew(["c"])) == (True, True, False)


def test_checkpoints_may_build_on_a_repaired_file() -> None:
    files = DamagedFiles(["a", "b"])

    assert files.on_whole(["a", "c"]) == ["a"]
    assert not files.must_begin_anew(["a"])
    assert files.must_begin_anew(["b"])


def test_damaged_files_that_no_checkpoint_needs_are_forgotten() -> None:
    files = DamagedFiles(["a", "b"])

    files.on_needed(frozenset({"b", "c"}))

    assert files.remembered == {"b"}


@dataclass
class Subtask:
    """A subtask that refers to a random part of its base and writes some new files."""

    index: int
    log: CompletedIncrements[frozenset[str]] = field(default_factory=CompletedIncrements)


@dataclass
class Underway:
    confirmed_id: CheckpointId
    files: dict[int, frozenset[str]] = field(default_factory=dict)  # acknowledged, by subtask
    is_cut: set[int] = field(default_factory=set)


class Run:
    """Uses the machines as their hosts do. The test itself knows which files are really whole."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.retained_count = rng.choice([1, 2, 3])
        self.concurrent_max = rng.choice([1, 3])
        self.manifests: dict[CheckpointId, frozenset[str]] = {}
        self.broken: set[str] = set()  # the files that are really damaged
        self.found_so_far: set[str] = set()  # found damaged and not found whole since
        self.shared = SharedFiles({})
        self.damaged = DamagedFiles()
        self.points = RetainedPoints(self.retained_count)
        self.next_id = CheckpointId(1)
        self.attempt = Attempt(1)
        self.underway: dict[CheckpointId, Underway] = {}
        self.subtasks = [Subtask(index) for index in range(SUBTASKS)]
        self.notices: list[tuple[Subtask, CheckpointId]] = []
        self.refused_count = 0

    def step(self) -> None:
        match self.rng.random():
            case p if p < 0.25:
                self.trigger()
            case p if p < 0.70:
                self.upload()
            case p if p < 0.76:
                self.break_a_file()
            case p if p < 0.82:
                self.verify()
            case p if p < 0.84:
                self.mend()
            case p if p < 0.88:
                self.abort(self.rng.choice([*self.underway])) if self.underway else None
            case p if p < 0.96:
                self.deliver_a_notice()
            case p if p < 0.98:
                self.restart_attempt()
            case _:
                self.restart_driver()
        for machine in (self.damaged, self.shared, self.points):
            machine.validate_state()

    # What happens to the run.

    def trigger(self) -> None:
        if len(self.underway) >= self.concurrent_max:
            return
        checkpoint_id, self.next_id = self.next_id, CheckpointId(self.next_id + 1)
        self.shared.on_triggered(checkpoint_id)
        self.underway[checkpoint_id] = Underway(self.confirmed_id())

    def confirmed_id(self) -> CheckpointId:
        confirmed = self.shared.confirmed_id
        if confirmed == NO_CHECKPOINT:
            return confirmed
        whole = [point.checkpoint_id for point in self.points.newest_first()]
        anew = self.damaged.must_begin_anew(self.shared.files_of(confirmed))
        return BUILD_ON_NOTHING if anew or confirmed not in whole else confirmed

    def upload(self) -> None:
        """One subtask cuts and acknowledges; after the last one, the manifest is written."""
        ready = [(n, s) for n, u in self.underway.items() for s in self.subtasks]
        ready = [(n, s) for n, s in ready if s.index not in self.underway[n].is_cut]
        if not ready:
            return
        checkpoint_id, subtask = self.rng.choice(ready)
        underway, log = self.underway[checkpoint_id], subtask.log
        if underway.confirmed_id == BUILD_ON_NOTHING:
            log.on_damaged()
        log.on_completed(underway.confirmed_id)
        kept = frozenset(n for n in sorted(log.base or ()) if self.rng.random() < 0.8)
        new = {f"{subtask.index}-{n}" for n in range(self.rng.randint(1, 2))}
        written = frozenset(shared_name(checkpoint_id, self.attempt, name) for name in new)
        underway.is_cut.add(subtask.index)
        log.on_written(checkpoint_id, kept | written)
        underway.files[subtask.index] = kept | written
        if len(underway.files) == SUBTASKS:
            self.finalize(checkpoint_id)

    def finalize(self, checkpoint_id: CheckpointId) -> None:
        files = frozenset().union(*self.underway[checkpoint_id].files.values())
        if self.damaged.damaged_among(files):
            self.damaged.on_refused()
            self.refused_count += 1
            self.abort(checkpoint_id)
            return
        found_before = self.damaged.remembered
        if self.rng.random() < 0.1:
            self.verify()  # while the manifest is being written
        for older in [n for n in self.underway if n < checkpoint_id]:
            self.abort(older)
        del self.underway[checkpoint_id]
        self.shared.on_completed(checkpoint_id, files)
        self.manifests[checkpoint_id] = files
        assert not files & found_before, "it refers to what was found before"
        self.damaged.on_needed(self.shared.needed)
        self.damaged.on_completed(files)
        why = "damaged" if self.damaged.damaged_among(files) else None
        for gone in self.points.on_completed(self.point(checkpoint_id), why):
            self.discard(gone.checkpoint_id)
        self.notices += [(subtask, checkpoint_id) for subtask in self.subtasks]

    def discard(self, checkpoint_id: CheckpointId) -> None:
        del self.manifests[checkpoint_id]
        self.shared.on_discarded(checkpoint_id)

    def abort(self, checkpoint_id: CheckpointId) -> None:
        del self.underway[checkpoint_id]
        self.shared.on_aborted(checkpoint_id, ())
        for subtask in self.subtasks:
            subtask.log.on_aborted(checkpoint_id)

    def deliver_a_notice(self) -> None:
        if self.notices:
            subtask, checkpoint_id = self.notices.pop(self.rng.randrange(len(self.notices)))
            subtask.log.on_completed(checkpoint_id)

    def restart_attempt(self) -> None:
        self.end_what_is_under_way()
        self.attempt = Attempt(self.attempt + 1)
        self.notices = []
        found = choose_point(self.points.candidates(), self.problem_of)
        if isinstance(found, NoUsablePoint):
            self.__init__(self.rng)  # type: ignore[misc]  # the run is over; another begins
            return
        for refused in found.refused:
            self.points.on_damaged(refused.point, refused.problem)
            self.found(self.manifests[refused.point.checkpoint_id] & self.broken)
        start = self.manifests[found.point.checkpoint_id] if found.point else frozenset()
        takes_over = self.rng.random() < 0.7  # False: as with another parallelism
        self.subtasks = [
            Subtask(i, CompletedIncrements(own_part(start, i) if takes_over else None))
            for i in range(SUBTASKS)
        ]

    def restart_driver(self) -> None:
        """A new driver finds the manifests, and the remembered damage in the journal."""
        self.underway = {}
        remembered = self.damaged.remembered
        self.shared = SharedFiles(self.manifests)
        self.damaged = DamagedFiles(remembered & self.shared.needed)
        self.points = RetainedPoints(self.retained_count, tuple(map(self.point, self.manifests)))
        self.mark(remembered)
        self.restart_attempt()

    def end_what_is_under_way(self) -> None:
        for checkpoint_id in list(self.underway):
            self.abort(checkpoint_id)

    # What happens to its files.

    def break_a_file(self) -> None:
        there = sorted(frozenset().union(*self.manifests.values()))
        if there:
            self.broken.add(self.rng.choice(there))

    def verify(self) -> None:
        """Reads some of the points; the others could not be read in time."""
        for point in self.points.every_newest_first():
            if self.rng.random() < 0.5:
                continue
            files = self.manifests[point.checkpoint_id]
            if files & self.broken:
                self.points.on_damaged(point, "it was read")
                self.found(files & self.broken)
            else:
                self.found_so_far -= set(self.damaged.on_whole(files))
                self.points.on_whole(point)

    def mend(self) -> None:
        if self.broken:
            self.broken.remove(self.rng.choice(sorted(self.broken)))

    def found(self, files: frozenset[str]) -> None:
        self.found_so_far |= files & self.shared.needed
        self.mark(frozenset(self.damaged.on_found(files & self.shared.needed)))

    def mark(self, files: frozenset[str]) -> None:
        for point in self.points.every_newest_first():
            if self.manifests[point.checkpoint_id] & files:
                self.points.on_damaged(point, "it refers to it")

    def problem_of(self, point: RetainedPoint) -> str | None:
        return "damaged" if self.manifests[point.checkpoint_id] & self.broken else None

    def point(self, checkpoint_id: CheckpointId) -> RetainedPoint:
        return RetainedPoint(checkpoint_id, f"/chk-{checkpoint_id}")

    # What must hold.

    def check_nothing_needed_is_forgotten(self) -> None:
        assert self.found_so_far & self.shared.needed <= self.damaged.remembered

    def check_choice(self) -> None:
        known = self.damaged.remembered
        marked = {n for n, files in self.manifests.items() if files & known}
        found = choose_point(self.points.candidates(), self.problem_of)
        whole = [n for n, files in self.manifests.items() if not files & self.broken]
        if whole:
            assert isinstance(found, Choice)
            assert found.point is not None
            assert found.point.checkpoint_id in whole
            unmarked = [n for n in whole if n not in marked]
            assert not unmarked or found.point.checkpoint_id not in marked

    def check_the_next_checkpoints_are_whole(self) -> None:
        """After all damage is found, the second of two successive checkpoints must complete."""
        self.found(frozenset().union(*self.manifests.values()) & self.broken)
        for _ in range(2):
            self.take_one()
        newest = max(self.manifests)
        assert newest == self.next_id - 1
        assert not self.manifests[newest] & self.broken

    def take_one(self) -> None:
        self.trigger()
        for _ in range(SUBTASKS):
            self.upload()


def own_part(files: frozenset[str], index: int) -> frozenset[str]:
    return frozenset(name for name in files if name.split("-")[2] == str(index))
