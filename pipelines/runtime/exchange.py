"""One outgoing exchange of a node: every record goes to the subtask that owns its key."""

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.domain.elements import Element, Records
from pipelines.state.hashing import key_groups, key_hashes


class Exchange:
    """`outputs` are indexed by target subtask. Marks go to all of them."""

    def __init__(
        self, hash_by: tuple[str, ...], outputs: list[Output], max_parallelism: int
    ) -> None:
        self._hash_by = hash_by
        self._outputs = outputs
        self._max_parallelism = max_parallelism

    def send(self, batch: pa.RecordBatch) -> None:
        if len(self._outputs) == 1:
            self._outputs[0].send(Records(batch))
            return
        groups = key_groups(key_hashes(batch, self._hash_by), self._max_parallelism)
        owners = (groups.astype(np.uint32) * len(self._outputs)) // self._max_parallelism
        for target, output in enumerate(self._outputs):
            part = batch.filter(pa.array(owners == target))
            if part.num_rows:
                output.send(Records(part))

    def broadcast(self, mark: Element) -> None:
        for output in self._outputs:
            output.send(mark)

    def blocked_ms(self) -> float:
        return sum(output.blocked_ms() for output in self._outputs)
