"""Where slots run: a Spark barrier stage, or what stands in for one."""

from typing import Protocol, runtime_checkable

from pipelines.connectors.files.data_frame import DataFrameRows
from pipelines.runtime.networking import SlotAddress


class StageHost(Protocol):
    """Where slots run. The real one is a Spark barrier stage."""

    def start(self, address: SlotAddress, parallelism: int) -> None:
        """Begin to start `parallelism` slots; post `StageEnded` when they have ended."""
        ...

    def cancel(self, address: SlotAddress) -> None:
        """Make sure that the stage of this attempt ends."""
        ...


@runtime_checkable
class KeepsDataFrames(Protocol):
    """A host that has Spark."""

    def keep_rows(self, source: DataFrameRows) -> int:
        """Writes the rows of a DataFrame to files; returns how many. Raises Rejected."""
        ...
