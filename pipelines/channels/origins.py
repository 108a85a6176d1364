"""The origins of a batch on the wire: one small frame before the batch.

They only help to explain a failure, so origins that are too long are left out, never refused.
"""

import msgspec

from pipelines.channels.limits import NetworkLimits
from pipelines.channels.wire import Frame, Kind, frame
from pipelines.domain.decoding import UNDECODABLE
from pipelines.domain.errors import ProtocolError
from pipelines.domain.origin import Origins

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Origins)


def origin_frame(number: int, origins: Origins, limits: NetworkLimits) -> bytes:
    """Empty if there is nothing to send."""
    body = _encoder.encode(origins) if origins else b""
    if not body or len(body) > limits.max_origin_bytes:
        return b""
    return frame(Kind.ORIGIN, number, body)


def origins_of(received: Frame) -> Origins:
    """Raises ProtocolError for bytes that are not origins."""
    try:
        return _decoder.decode(received.body)
    except UNDECODABLE as error:
        raise ProtocolError(f"the origins of a batch cannot be read: {error}") from error
