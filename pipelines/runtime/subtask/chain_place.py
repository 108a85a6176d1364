"""Where a chain runs: what makes its names unique, and which key groups it owns."""

from dataclasses import dataclass

from pipelines.domain.graph import Vertex
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.key_groups import KeyGroupRange, range_of


@dataclass(frozen=True, slots=True)
class ChainPlace:
    run_id: RunId
    attempt: Attempt
    vertex: Vertex
    subtask: int
    parallelism: int
    max_parallelism: int

    @property
    def key_groups(self) -> KeyGroupRange:
        return range_of(self.subtask, self.parallelism, self.max_parallelism)
