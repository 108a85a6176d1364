"""A list of one subtask that belongs to no key. Source: Flink's `OperatorStateStore` lists."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.redistribution import Redistribution
from pipelines.state.backend import FrozenState
from pipelines.state.descriptors import ListStateDescriptor


class OperatorListState:
    """Kept as copies of the added arrays, which never change, so a cut copies only references.

    Without the copy, an array made over NumPy memory would change with that memory.
    """

    def __init__(self, name: str, descriptor: ListStateDescriptor, kind: Redistribution) -> None:
        self.name = name
        self.kind = kind
        self.schema = pa.schema([(descriptor.name, descriptor.type)])
        self._descriptor = descriptor
        self._chunks: list[pa.Array] = []

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self._chunks)

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def get(self) -> pa.Array:
        """All elements, in order."""
        whole = pa.chunked_array(self._chunks, self._descriptor.type).combine_chunks()
        self._chunks = [whole] if len(whole) else []
        return whole

    def add(self, elements: pa.Array) -> None:
        """Raises Rejected if their type is not the declared one."""
        declared = self._descriptor
        if elements.type != declared.type:
            raise Rejected(
                f"The state {declared.name!r} holds {declared.type}; it was given {elements.type}."
            )
        if len(elements):
            self._chunks.append(elements.take(pa.array(np.arange(len(elements)))))

    def update(self, elements: pa.Array) -> None:
        self.clear()
        self.add(elements)

    def clear(self) -> None:
        self._chunks = []

    def freeze(self) -> FrozenState:
        batches = _batches(tuple(self._chunks), self.schema)
        return FrozenState(self.name, self.kind, self.schema, len(self), batches)

    def restore(self, batch: pa.RecordBatch) -> None:
        """Adds one part of what the subtask gets; the parts come in order."""
        self.add(batch.column(0))


def _batches(chunks: tuple[pa.Array, ...], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for chunk in chunks:
        yield pa.RecordBatch.from_arrays([chunk], schema=schema)
