"""A slot may cut a checkpoint before the master's message about it has arrived."""

from pipelines.domain.ids import CheckpointId
from pipelines.runtime.subtask.checkpoint_locations import CheckpointLocations

FIRST, SECOND = CheckpointId(1), CheckpointId(2)


def test_what_was_cut_early_is_uploaded_once_the_master_has_said_where() -> None:
    locations, uploaded = CheckpointLocations(), list[str | None]()
    locations.on_triggered(FIRST, "chk-1")

    locations.once_heard_of(SECOND, lambda: uploaded.append(locations.of(SECOND)))
    early = list(uploaded)
    locations.on_triggered(SECOND, "chk-2")

    assert (early, uploaded) == ([], ["chk-2"])


def test_what_is_cut_after_the_message_is_uploaded_at_once() -> None:
    locations, uploaded = CheckpointLocations(), list[str | None]()
    locations.on_triggered(FIRST, "chk-1")

    locations.once_heard_of(FIRST, lambda: uploaded.append(locations.of(FIRST)))

    assert uploaded == ["chk-1"]


def test_a_checkpoint_that_is_over_has_no_location_and_keeps_nobody_waiting() -> None:
    locations, uploaded = CheckpointLocations(), list[str | None]()
    locations.on_triggered(FIRST, "chk-1")
    locations.on_over(FIRST)

    locations.once_heard_of(FIRST, lambda: uploaded.append(locations.of(FIRST)))

    assert uploaded == [None]
