"""The origins of a batch on the wire: whole or not at all."""

import pyarrow as pa
import pytest

from pipelines.channels.channel import NetworkLimits
from pipelines.channels.wire import HEADER, Frame, Kind, origin_frame, origins_of
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import Uid
from pipelines.domain.origins import Origins, RecordOrigin

LIMITS = NetworkLimits(max_origin_bytes=200)


def origin(split: str = "part-1.csv") -> RecordOrigin:
    return RecordOrigin(
        source=Uid("events"), subtask=3, split=split, first_offset=2**40, last_offset=2**40 + 9
    )


@pytest.mark.parametrize("sent_origins", [(origin(),), (origin("a"), origin("b"))])
def test_origins_arrive_as_they_were_sent(sent_origins: Origins) -> None:
    sent = origin_frame(7, sent_origins, LIMITS)
    kind, number, length = HEADER.unpack_from(sent)
    body = pa.py_buffer(sent[HEADER.size :])

    assert (kind, number, length) == (Kind.ORIGIN, 7, body.size)
    assert origins_of(Frame(Kind.ORIGIN, 7, body)) == sent_origins


@pytest.mark.parametrize("unsaid", [(), (origin("x" * 300),)])
def test_unknown_or_overlong_origins_are_left_out(unsaid: Origins) -> None:
    assert origin_frame(7, unsaid, LIMITS) == b""


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x81\xa5split\x01", b"\x81\xa5split\xa1\xff"])
def test_malformed_origins_raise_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="the origins of a batch cannot be read"):
        origins_of(Frame(Kind.ORIGIN, 7, pa.py_buffer(body)))
