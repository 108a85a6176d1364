"""Two streams on their way into one operator."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, EdgeKind
from pipelines.operators.batch_function import BatchMapping, ConnectedFunctions
from pipelines.operators.columns import field_of
from pipelines.operators.processing.process import Process
from pipelines.operators.processing.process_function import (
    BatchProcessFunction,
    KeyedProcessFunction,
)

if TYPE_CHECKING:
    from pipelines.stream.streams import Stream


@dataclass(frozen=True, slots=True)
class ConnectedStreams:
    """Two streams on their way into one operator. Source: Flink's `ConnectedStreams`."""

    first: "Stream"
    second: "Stream"
    first_input: Connection
    second_input: Connection

    def key_by(self, first: list[str], second: list[str]) -> "ConnectedStreams":
        """Equal keys of both streams meet in one subtask; the columns are paired in order.

        Raises Rejected when they cannot be equal: another number of columns, or other types.
        """
        types = [
            [field_of(stream.schema, column).type for column in columns]
            for stream, columns in ((self.first, first), (self.second, second))
        ]
        if types[0] != types[1]:
            raise Rejected(
                f"{self.first.node!r} and {self.second.node!r} cannot be connected by {first} and"
                f" {second}: the columns must be as many and have the same types."
            )
        return replace(
            self,
            first_input=self.first.connection(tuple(first)),
            second_input=self.second.connection(tuple(second)),
        )

    def map_batches(
        self, first: BatchMapping, second: BatchMapping, schema: pa.Schema, *, uid: str
    ) -> "Stream":
        """One function per stream; both return batches of `schema`.

        Event time stays if both streams have the same name for it and `schema` has that column.
        """
        check_together(uid, self.first, self.second)
        times = {self.first.time_column, self.second.time_column}
        time = self.first.time_column if len(times) == 1 else None
        node = self.first.environment.add_operator(
            uid,
            lambda: ConnectedFunctions(first, second, schema),
            (self.first_input, self.second_input),
        )
        return self.first.derived(node, time if time in schema.names else None)

    def process(
        self,
        function: BatchProcessFunction | KeyedProcessFunction,
        schema: pa.Schema,
        *,
        uid: str,
    ) -> "Stream":
        """One function for both streams, with state and timers of their common key.

        The first stream must have a key. The second has the same key, or is broadcast and then
        keeps a broadcast state (Flink: `KeyedCoProcessFunction`, `KeyedBroadcastProcessFunction`).
        Event time stays if the first stream's column does. Raises Rejected for other streams.
        """
        check_together(uid, self.first, self.second)
        keys = (self.first_input.hash_by or (), self.second_input.hash_by or ())
        is_broadcast = self.second_input.kind is EdgeKind.BROADCAST
        if not keys[0] or bool(keys[1]) is is_broadcast:
            raise Rejected(
                f"{uid!r} processes two streams: the first needs a key, and the second the same"
                " one or broadcast()."
            )
        node = self.first.environment.add_operator(
            uid,
            lambda: Process(function, keys, schema, uid),
            (self.first_input, self.second_input),
        )
        time = self.first.time_column
        return self.first.derived(node, time if time in schema.names else None)


def check_together(uid: str, *streams: "Stream") -> None:
    """Raises Rejected if the streams belong to several environments."""
    if any(stream.environment is not streams[0].environment for stream in streams):
        raise Rejected(f"{uid!r} joins streams of two environments; all must be of one.")
