"""Runs slots as one Spark barrier stage per attempt: Spark places, starts and isolates them.

Spark never retries a failed barrier result stage, which suits us: the job master has the restart
strategy. Start-up does not use `barrier()` or `allGather()`, which sleep about a second each; slots
dial the control address from the task's closure.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark import BarrierTaskContext, InheritableThread
from pyspark.sql import SparkSession

from pipelines.connectors.files.data_frame import DataFrameRows
from pipelines.runtime.master.job_events import JobEvent, StageEnded
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.slot import run_slot
from pipelines.spark.data_frames import keep_rows

if TYPE_CHECKING:
    from pipelines.domain.ids import Attempt


class SparkStageHost:
    """Implements `StageHost` and `KeepsDataFrames` of `pipelines.runtime.master.run_parts`."""

    def __init__(self, session: SparkSession, post: Callable[[JobEvent], None]) -> None:
        self._session = session
        self._context = session.sparkContext
        self._post = post
        self._threads: dict[Attempt, InheritableThread] = {}

    def keep_rows(self, source: DataFrameRows) -> int:
        return keep_rows(self._session, source)

    def start(self, address: SlotAddress, parallelism: int) -> None:
        thread = InheritableThread(target=self._run, args=(address, parallelism), daemon=True)
        self._threads[address.attempt] = thread
        thread.start()

    def cancel(self, address: SlotAddress) -> None:
        self._context.cancelJobGroup(_group(address))

    def wait(self, timeout_s: float) -> None:
        """Waits until every stage has ended, so that the session can be stopped."""
        for thread in self._threads.values():
            thread.join(timeout_s)

    def _run(self, address: SlotAddress, parallelism: int) -> None:
        self._context.setJobGroup(_group(address), f"attempt {address.attempt}", True)
        slots = self._context.parallelize(range(parallelism), parallelism).barrier()
        try:
            slots.mapPartitions(_slot_task(address)).collect()
        except Exception as error:  # Spark may raise anything; the master decides
            lines = str(error).strip().splitlines()
            self._post(StageEnded(address.attempt, lines[0] if lines else type(error).__name__))
        else:
            self._post(StageEnded(address.attempt, ""))


def _slot_task(address: SlotAddress) -> Callable[[Iterator[int]], Iterator[int]]:
    def serve(partition: Iterator[int]) -> Iterator[int]:
        del partition  # the records of a stream do not come from Spark
        run_slot(address, BarrierTaskContext.get().partitionId())
        return iter(())

    return serve


def _group(address: SlotAddress) -> str:
    return f"attempt-{address.attempt}"
