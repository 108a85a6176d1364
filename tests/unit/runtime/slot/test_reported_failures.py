"""A slot's report of a failure decides if the run goes back to a point or ends."""

import pytest

from pipelines.domain.errors import CorruptSnapshot, DamagedFile, Rejected
from pipelines.domain.ids import Uid
from pipelines.runtime.control import Failed, Message
from pipelines.runtime.slot.subtask_reports import SubtaskReports
from pipelines.runtime.subtask.operator_failure import OperatorFailed


@pytest.mark.parametrize(
    ("error", "is_fatal", "is_damage", "file"),
    [
        (DamagedFile("a.arrow was altered.", "a.arrow"), True, True, "a.arrow"),
        (CorruptSnapshot("The database cannot be opened."), True, True, None),
        (Rejected("The flow has changed."), True, False, None),
        (OSError("away"), False, False, None),
    ],
    ids=["one file", "no one file", "a refusal", "the world"],
)
def test_a_slot_reports_damage_as_such_with_its_file_if_known(
    error: Exception, is_fatal: bool, is_damage: bool, file: str | None
) -> None:
    sent: list[Message] = []
    reports = SubtaskReports(sent.append, lambda point: None)

    reports.slot_failed(error)
    reports.slot_failed(OperatorFailed(Uid("totals"), (), error))

    assert len(sent) == 2
    for failed in sent:
        assert isinstance(failed, Failed)
        told = (failed.is_fatal, failed.is_damage, failed.damaged_file)
        assert told == (is_fatal, is_damage, file)
