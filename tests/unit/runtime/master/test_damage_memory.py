"""A run's memory of damage: the marks on its points, the events, and the effect on checkpoints."""

from collections.abc import Sequence

from pipelines.domain.events import DamageRemembered, Event, RestorePointRefused
from pipelines.domain.ids import BUILD_ON_NOTHING, NO_CHECKPOINT, CheckpointId
from pipelines.domain.status import DamageFinder
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.storage.store import Damage
from tests.unit.runtime.shared_points import shared_host, sharing

BASE, DELTA, NEW = "c1-a1-base", "c2-a1-delta", "c3-a1-base"
FILES = {1: [BASE], 2: [BASE, DELTA], 3: [NEW]}
BY = DamageFinder.VERIFICATION


def test_every_point_that_refers_to_a_damaged_file_is_marked_with_the_reason() -> None:
    run = Run()

    run.memory.on_found(run.point_of(1), [altered(BASE)], BY, "Looked at again: torn.")

    assert run.offered == [3]
    assert run.refused == {
        "/chk-1": "Looked at again: torn.",
        "/chk-2": f"It refers to {BASE}, which was found damaged.",
    }
    assert run.remembered == [
        DamageRemembered(
            files=[BASE],
            points=["/chk-2", "/chk-1"],
            found_by=BY,
            message=f"{BASE} was altered.",
            remembered=[BASE],
        )
    ]


def test_known_damage_is_reported_once() -> None:
    run = Run()

    for _ in range(2):
        run.memory.on_found(run.point_of(1), [altered(BASE)], BY, "torn")
    run.memory.on_found(run.point_of(2), [altered(DELTA)], BY, "torn as well")

    assert [(e.files, e.remembered) for e in run.remembered] == [
        ([BASE], [BASE]),
        ([DELTA], [BASE, DELTA]),
    ]


def test_a_damaged_file_of_one_point_marks_no_other_point() -> None:
    run = Run()

    run.memory.on_found(run.point_of(2), [Damage("CURRENT", "torn")], BY, "torn")

    assert run.offered == [3, 1]
    assert run.remembered == []


def test_a_missing_file_that_no_point_needs_is_not_damage() -> None:
    run = Run()
    gone = RetainedPoint(CheckpointId(0), "/chk-0")

    run.memory.on_found(gone, [altered("c0-a1-base")], BY, "missing")

    assert run.events == []


def test_damage_to_a_savepoint_or_another_run_marks_no_point_of_the_run() -> None:
    run = Run()

    for point in (
        RetainedPoint(CheckpointId(9), "/savepoint-9", is_savepoint=True),
        RetainedPoint(CheckpointId(9), "/other/chk-9", is_claimed=True),
    ):
        run.memory.on_found(point, [altered(BASE)], BY, "missing")

    assert run.offered == [3, 2, 1]
    assert run.events == []


def test_a_new_driver_restores_the_marks_without_reporting_them_again() -> None:
    run = Run(remembered=[BASE, "c0-a1-gone"])

    assert run.offered == [3]
    assert run.events == []
    assert run.memory.remembered == {BASE}


def test_subtasks_build_on_the_newest_checkpoint_only_while_it_is_whole() -> None:
    run = Run()
    before = run.memory.confirmed_id()
    run.memory.on_found(run.point_of(1), [altered(BASE)], BY, "torn")
    of_an_older_one = run.memory.confirmed_id()
    run.memory.on_found(run.point_of(3), [altered(NEW)], BY, "torn")

    assert (before, of_an_older_one) == (3, 3)
    assert run.memory.confirmed_id() == BUILD_ON_NOTHING
    assert Run(files={}).memory.confirmed_id() == NO_CHECKPOINT


def test_no_checkpoint_builds_on_a_newest_one_whose_own_file_is_damaged() -> None:
    run = Run()

    run.memory.on_found(run.point_of(3), [Damage("CURRENT", "torn")], BY, "torn")

    assert run.memory.confirmed_id() == BUILD_ON_NOTHING


def test_a_manifest_with_a_damaged_file_is_refused_and_the_next_one_is_full() -> None:
    run = Run()
    run.memory.on_found(run.point_of(1), [altered(BASE)], BY, "torn")

    assert run.memory.problem_of(sharing([NEW])) is None
    why = run.memory.problem_of(sharing([BASE, DELTA]))

    assert why is not None
    assert BASE in why
    assert run.memory.confirmed_id() == BUILD_ON_NOTHING


def test_a_file_missing_at_a_checkpoint_is_remembered_and_the_next_one_is_full() -> None:
    run = Run()

    run.memory.on_missing([altered(BASE)])

    assert [e.found_by for e in run.remembered] == [DamageFinder.CHECKPOINT]
    assert run.offered == [3]
    assert run.memory.confirmed_id() == BUILD_ON_NOTHING


def test_a_checkpoint_completed_with_a_damaged_file_names_that_file() -> None:
    """The damage was found while the manifest was being written."""
    run = Run()
    run.memory.on_found(run.point_of(1), [altered(BASE)], BY, "torn")

    assert run.memory.on_completed(run.point_of(3)) is None
    assert BASE in (run.memory.on_completed(run.point_of(2)) or "")


def test_a_repaired_file_is_reported_and_its_points_lose_their_marks() -> None:
    run = Run()
    run.memory.on_found(run.point_of(1), [altered(BASE)], BY, "torn")
    known = run.memory.remembered

    run.memory.on_whole([run.point_of(2), run.point_of(1)], known)

    assert run.remembered[-1] == DamageRemembered(mended=[BASE])
    assert run.offered == [3, 2, 1]


def test_damage_found_during_a_verification_is_not_taken_for_repaired() -> None:
    run = Run()
    known = run.memory.remembered
    run.memory.on_found(run.point_of(1), [altered(BASE)], BY, "torn")

    run.memory.on_whole([run.point_of(2), run.point_of(1)], known)

    assert run.memory.remembered == {BASE}
    assert run.offered == [3]


def altered(name: str) -> Damage:
    return Damage(name, f"{name} was altered.", is_shared=True)


class Run:
    """A run with three checkpoints; the first two share a file."""

    def __init__(
        self, files: dict[int, list[str]] | None = None, remembered: Sequence[str] = ()
    ) -> None:
        found = {CheckpointId(n): names for n, names in (FILES if files is None else files).items()}
        self.events: list[Event] = []
        self.points = RetainedPoints(3, tuple(self.point_of(n) for n in found))
        shared = shared_host(found)
        self.memory = DamageMemory(self.points, shared, self.events.append, remembered)

    def point_of(self, number: int) -> RetainedPoint:
        return RetainedPoint(CheckpointId(number), f"/chk-{number}")

    @property
    def offered(self) -> list[int]:
        return [point.checkpoint_id for point in self.points.newest_first()]

    @property
    def refused(self) -> dict[str, str]:
        return {e.path: e.message for e in self.events if isinstance(e, RestorePointRefused)}

    @property
    def remembered(self) -> list[DamageRemembered]:
        return [event for event in self.events if isinstance(event, DamageRemembered)]
