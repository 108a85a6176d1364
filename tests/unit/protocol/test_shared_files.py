"""Shared files: named cases. `test_shared_files_by_seed` has the random runs."""

from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.protocol.retention import CompletedIncrements, SharedFiles, shared_name

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)


def test_a_file_that_a_newer_checkpoint_refers_to_outlives_the_one_that_wrote_it() -> None:
    files = SharedFiles({ONE: ["a", "b"]})
    files.on_triggered(TWO)
    files.on_completed(TWO, ["b", "c"])

    assert files.on_discarded(ONE) == ["a"]


def test_a_failed_checkpoint_loses_its_own_files_but_not_those_it_referred_to() -> None:
    files = SharedFiles({ONE: ["a"]})
    files.on_triggered(TWO)

    assert files.on_aborted(TWO, ["a", "b"]) == ["b"]


def test_a_file_is_kept_while_a_checkpoint_may_still_refer_to_it() -> None:
    files = SharedFiles({ONE: ["a"]})
    files.on_triggered(TWO)
    files.on_triggered(THREE)
    files.on_completed(TWO, [])

    assert files.on_discarded(ONE) == []  # 3 may have been cut before it heard of 2
    assert files.on_completed(THREE, ["a"]) == []
    assert files.on_discarded(TWO) == []
    assert files.on_discarded(THREE) == ["a"]


def test_a_failed_checkpoint_deletes_no_file_of_another_under_way() -> None:
    files = SharedFiles({ONE: ["a"]})
    for checkpoint_id in (TWO, THREE, CheckpointId(4)):
        files.on_triggered(checkpoint_id)
    files.on_completed(TWO, [])
    files.on_discarded(ONE)

    assert files.on_aborted(THREE, ["a"]) == []
    assert files.on_listed(["a"]) == []


def test_a_barrier_confirms_the_newest_completed_checkpoint() -> None:
    files = SharedFiles({ONE: []})
    files.on_triggered(TWO)
    assert files.confirmed_id == ONE

    files.on_completed(TWO, [])

    assert files.confirmed_id == TWO


def test_a_listing_finds_orphaned_files_and_leaves_the_rest_alone() -> None:
    files = SharedFiles({ONE: [name(1, "kept")]})
    files.on_triggered(THREE)
    half = f".{name(2, 'half')}.6e8f"
    found = [name(1, "kept"), name(2, "lost"), half, name(3, "on its way"), "README"]

    assert files.on_listed(found) == sorted([name(2, "lost"), half])


def test_an_unreadable_point_keeps_every_file_that_it_may_refer_to() -> None:
    old, same, later = name(1, "old"), name(2, "same"), name(3, "later")
    files = SharedFiles({ONE: [old], TWO: None})
    files.on_triggered(THREE)

    assert files.on_completed(THREE, []) == []
    assert files.on_discarded(ONE) == []
    assert files.on_listed([old, same, later]) == [later]
    assert files.is_unread(TWO)

    assert files.on_discarded(TWO) == []  # a listing finds its files
    assert not files.is_unread(TWO)
    assert files.on_listed([old, same, later]) == [old, same, later]


def test_no_increment_builds_on_a_checkpoint_not_known_to_be_complete() -> None:
    increments: CompletedIncrements[str] = CompletedIncrements()
    increments.on_written(ONE, "one")
    assert increments.base is None

    increments.on_completed(ONE)
    increments.on_written(TWO, "two")

    assert increments.base == "one"


def test_no_increment_builds_on_a_failed_checkpoint() -> None:
    increments = CompletedIncrements("restored")
    increments.on_written(ONE, "one")
    increments.on_aborted(ONE)

    increments.on_completed(ONE)

    assert increments.base == "restored"


def test_late_or_repeated_notices_do_not_move_the_base_back() -> None:
    increments: CompletedIncrements[str] = CompletedIncrements()
    increments.on_written(ONE, "one")
    increments.on_written(TWO, "two")
    increments.on_completed(TWO)

    increments.on_completed(ONE)
    increments.on_completed(TWO)
    increments.on_completed(CheckpointId(9))  # a savepoint: no files to build on

    assert increments.base == "two"


def test_after_an_empty_state_there_is_nothing_to_build_on() -> None:
    increments = CompletedIncrements("restored")
    increments.on_written(ONE, None)

    increments.on_completed(ONE)

    assert increments.base is None


def test_no_increment_builds_on_damaged_files() -> None:
    increments: CompletedIncrements[str] = CompletedIncrements()
    increments.on_written(ONE, "one")
    increments.on_completed(ONE)
    increments.on_written(TWO, "two, on top of one")

    increments.on_damaged()
    increments.on_completed(TWO)

    assert increments.base is None


def name(checkpoint_id: int, rest: str) -> str:
    return shared_name(CheckpointId(checkpoint_id), Attempt(1), rest)
