"""A slot's report of a failure decides if the run goes back to a point or ends."""

import msgspec
import pytest

from pipelines.domain.errors import CorruptSnapshot, DamagedFile, Rejected
from pipelines.domain.ids import Uid
from pipelines.runtime.control import SLOT_DECODER, Failed, Message, MessageTooLong
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


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise type(self)


@pytest.mark.parametrize("is_of_operator", [False, True])
def test_a_failure_is_reported_even_if_its_message_cannot_be_told(is_of_operator: bool) -> None:
    error: Exception = Unspeakable()
    if is_of_operator:
        error = OperatorFailed(Uid("totals"), (), error)
    sent: list[Message] = []

    def send(message: Message) -> None:
        msgspec.json.encode(message)
        sent.append(message)

    SubtaskReports(send, lambda point: None).slot_failed(error)

    (failed,) = sent
    assert isinstance(failed, Failed)
    assert failed.cause == "Unspeakable"
    assert SLOT_DECODER.decode(msgspec.json.encode(failed)) == failed


def test_a_failure_whose_report_cannot_be_sent_is_reported_in_a_short_one() -> None:
    sent: list[Message] = []

    def send(message: Message) -> None:
        if not sent:
            sent.append(message)
            raise MessageTooLong("64 MiB at most")
        sent.append(message)

    try:
        raise ValueError("a long story")
    except ValueError as error:
        SubtaskReports(send, lambda point: None).slot_failed(error)

    whole, short = sent
    assert isinstance(whole, Failed)
    assert isinstance(short, Failed)
    assert short.cause == "ValueError; its report failed (MessageTooLong)."
    assert 'raise ValueError("a long story")' in short.detail  # where it was raised
