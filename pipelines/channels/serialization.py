"""Record batches as Arrow IPC: the schema once per channel, then one message per batch.

A batch with dictionary columns travels as an Arrow stream of its own, because dictionaries are not
part of a batch message; it then sends its schema each time.

The origins of a batch on the wire: one small frame before the batch.

They only help to explain a failure, so origins that are too long are left out, never refused.
"""

import msgspec
import pyarrow as pa

from pipelines.channels.limits import NetworkLimits
from pipelines.channels.wire import HEADER, Frame, Kind, frame
from pipelines.domain.elements import Origins
from pipelines.domain.errors import UNDECODABLE, ProtocolError, Rejected
from pipelines.domain.ids import ChannelId

Parts = list[bytes | pa.Buffer]
UNREADABLE = (pa.ArrowException, OSError, EOFError, StopIteration)
"""The errors of Arrow's readers for malformed bytes."""


class RecordsEncoder:
    """The sending half of one channel. The batches of a channel may change their schema."""

    def __init__(self, channel: ChannelId, number: int, limits: NetworkLimits) -> None:
        self._channel = channel
        self._number = number
        self._limits = limits
        self._schema: pa.Schema | None = None
        self._has_dictionaries = False

    def encode(self, batch: pa.RecordBatch) -> tuple[Parts, int]:
        """The parts of the frames, in order, and what the batch costs in credit.

        Raises Rejected for a batch that no peer would accept.
        """
        preamble = self._schema_frame(batch.schema)
        body = _whole_stream(batch) if self._has_dictionaries else batch.serialize()
        if body.size > self._limits.max_frame_bytes:
            raise Rejected(
                f"a batch of {batch.num_rows} rows on channel {self._channel} takes {body.size} "
                f"bytes, more than max_frame_bytes = {self._limits.max_frame_bytes}; "
                "let the source read smaller batches"
            )
        kind = Kind.DICTIONARIES if self._has_dictionaries else Kind.RECORDS
        return [preamble + HEADER.pack(kind, self._number, body.size), body], body.size

    def _schema_frame(self, schema: pa.Schema) -> bytes:
        if self._schema is not None and schema.equals(self._schema, check_metadata=True):
            return b""
        self._schema = schema
        self._has_dictionaries = any(_holds_dictionary(field.type) for field in schema)
        if self._has_dictionaries:
            return b""
        serialized = schema.serialize().to_pybytes()
        if len(serialized) > self._limits.max_schema_bytes:
            raise Rejected(
                f"the schema on channel {self._channel} takes {len(serialized)} bytes, more than "
                f"max_schema_bytes = {self._limits.max_schema_bytes}"
            )
        return frame(Kind.SCHEMA, self._number, serialized)


class RecordsDecoder:
    """The receiving half: batches are views of the received buffer, not copies."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def on_schema(self, received: Frame) -> None:
        try:
            self._schema = pa.ipc.read_schema(received.body)
        except UNREADABLE as error:
            raise ProtocolError(f"a schema cannot be read: {error}") from error

    def decode(self, received: Frame) -> pa.RecordBatch:
        """Raises ProtocolError for bytes that are not a batch of the announced schema."""
        try:
            batch = self._read(received)
            batch.validate()
        except UNREADABLE as error:
            raise ProtocolError(f"a batch cannot be read: {error}") from error
        return batch

    def _read(self, received: Frame) -> pa.RecordBatch:
        if received.kind is Kind.DICTIONARIES:
            return pa.ipc.open_stream(received.body).read_next_batch()
        if self._schema is None:
            raise ProtocolError("records came before their schema")
        return pa.ipc.read_record_batch(received.body, self._schema)


def _whole_stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _holds_dictionary(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _holds_dictionary(data_type.storage_type)
    return any(_holds_dictionary(data_type.field(i).type) for i in range(data_type.num_fields))


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
