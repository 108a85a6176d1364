"""The origin of a batch on the wire: one small frame in front of the batch.

An origin only helps to explain a failure, so one that is too long is left out and never refused.
"""

import msgspec

from pipelines.channels.limits import NetworkLimits
from pipelines.channels.wire import Frame, Kind, frame
from pipelines.domain.decoding import UNDECODABLE
from pipelines.domain.errors import ProtocolError
from pipelines.domain.origin import RecordOrigin

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RecordOrigin)


def origin_frame(number: int, origin: RecordOrigin | None, limits: NetworkLimits) -> bytes:
    """Empty when there is nothing to say."""
    body = b"" if origin is None else _encoder.encode(origin)
    if not body or len(body) > limits.max_origin_bytes:
        return b""
    return frame(Kind.ORIGIN, number, body)


def origin_of(received: Frame) -> RecordOrigin:
    """Raises ProtocolError for bytes that are no origin."""
    try:
        return _decoder.decode(received.body)
    except UNDECODABLE as error:
        raise ProtocolError(f"an origin cannot be read: {error}") from error
