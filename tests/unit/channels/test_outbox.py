"""Elements that wait at the writer. The contract suite tests the outbox's other rules."""

import pyarrow as pa
import pytest

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.credit import Credit, Outbox
from pipelines.domain.elements import Element, EndOfInput, Records, Watermark
from pipelines.domain.ids import ChannelId

RECORDS = Records(pa.record_batch({"n": [1]}))


def test_an_outbox_holds_elements_until_its_channel_opens() -> None:
    credit, passed = Credit(), list[Element]()
    outbox = Outbox(ChannelId("a"), credit, passed.append)
    outbox.send(Watermark(1))

    assert not outbox.flush()
    credit.open(10)

    assert outbox.flush()
    assert passed == [Watermark(1)]


def test_a_mark_does_not_overtake_records_that_wait_for_credit() -> None:
    credit, passed = Credit(), list[Element]()
    outbox = Outbox(ChannelId("a"), credit, passed.append)
    credit.open(1)
    credit.take(1)
    outbox.send(RECORDS)
    outbox.send(EndOfInput())

    assert not outbox.flush()
    assert passed == []


def test_a_reader_may_leave_after_it_received_the_end() -> None:
    credit, passed = Credit(), list[Element]()
    outbox = Outbox(ChannelId("a"), credit, passed.append)
    credit.open(10)
    outbox.send(EndOfInput())
    credit.close("the reader is gone")

    assert outbox.flush()


def test_a_reader_that_leaves_before_the_end_is_an_error() -> None:
    credit = Credit()
    outbox = Outbox(ChannelId("a"), credit, list[Element]().append)
    credit.close("the reader is gone")

    with pytest.raises(ChannelClosed):
        outbox.flush()
