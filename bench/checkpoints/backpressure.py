"""How long does a checkpoint take while a slow reader has filled every buffer before it?

Twice: with channels that hold up to their capacity, aligned against overtaking; and aligned with
small records and the default settings, where channels hold what their reader consumes in time.

Expected by a sketch: aligned, a barrier waits for its turn, so two full channels of 8 MiB at the
reader's pace: ten to twenty seconds here. Overtaking, it waits for nothing, and what the channels
hold is written: some tens of milliseconds, and about as much to gather. State of the reader
(`--keys 1000000`: some 20 MB more to write) adds to both alike. Slots are plain processes here,
because it is the engine that is measured, not how Spark starts it.

Small records, 100 bytes each and 2.5 ms of the reader's time: two full channels of 8 MiB would hold
140,000 of them for each reader, six minutes. Within the target of 150 ms it is 60 that are queued,
and as many that are in work, so a barrier takes about a third of a second.
"""

import statistics
import tempfile
from pathlib import Path

from bench.benchmark import Benchmark, Fields, at_least, at_most, progress
from pipelines.bus.inbox import submit
from pipelines.domain.commands import TriggerCheckpoint
from pipelines.domain.events import CheckpointCompleted, MetricsSampled
from pipelines.domain.ids import RequestId
from pipelines.domain.settings.resources import DEBLOATING
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.small_records import HANDLED, most_in_flight, total

BARS = (
    at_most("unaligned_ms", 1_000),
    at_least("aligned_over_unaligned", 2),
    at_most("small_records_ms_max", 5_000),
)
PARALLELISM = 2
SLOW_MS = 10
FULL_BYTES = 7 << 20  # of a channel's 8 MiB: credit comes back in quarters
SLOW_US = 2_500  # of a small record
SETTLED_RECORDS = 2_000  # have been handled before the first checkpoint of small records
BETWEEN_RECORDS = 500  # two of them
FILL_TIMEOUT_S, CHECKPOINT_TIMEOUT_S = 120.0, 180.0
WITHOUT_END = {"total": "1000000000", "whole_splits": "yes"}
ON_DEMAND = {
    "execution.checkpointing.interval": "1 h",
    DEBLOATING + "enabled": "false",
    "pipeline.coalescing.max-rows": "1",  # or the slow reader takes what queues in one go
}
UNALIGNED = {**ON_DEMAND, "execution.checkpointing.unaligned.enabled": "true"}


def main() -> None:
    benchmark = Benchmark("backpressure", __doc__)
    benchmark.options.add_argument("--checkpoints", type=int, default=5, help="overtaking ones")
    benchmark.options.add_argument("--keys", type=int, default=0, help="in the reader's state")
    options = benchmark.options.parse()
    benchmark.report(measure(options.checkpoints, options.keys), BARS)


def measure(
    checkpoints: int,
    keys: int,
    slow_ms: int = SLOW_MS,
    full_bytes: int = FULL_BYTES,
    slow_us: int = SLOW_US,
) -> Fields:
    """The reader takes `slow_ms` for a batch, and `slow_us` for a small record; a channel that
    holds `full_bytes` counts as full."""
    parameters = {**WITHOUT_END, "slow_ms": str(slow_ms), "state_keys": str(keys)}
    unaligned = measured(UNALIGNED, parameters, checkpoints, full_bytes)
    [aligned] = measured(ON_DEMAND, parameters, 1, full_bytes)
    small = small_records(checkpoints, slow_us)
    unaligned_ms = statistics.median(e.end_to_end_ms for e in unaligned)
    return {
        "unaligned_ms": round(unaligned_ms),
        "unaligned_ms_max": round(max(e.end_to_end_ms for e in unaligned)),
        "aligned_ms": round(aligned.end_to_end_ms),
        "aligned_over_unaligned": round(aligned.end_to_end_ms / unaligned_ms, 2),
        "small_records_ms": round(statistics.median(e.end_to_end_ms for e in small)),
        "small_records_ms_max": round(max(e.end_to_end_ms for e in small)),
        "keys": keys,
        "state_bytes": aligned.state_bytes,
        "persisted_bytes": round(statistics.median(e.persisted_bytes for e in unaligned)),
        "checkpoints": len(unaligned),
    }


def measured(
    settings: dict[str, str], parameters: dict[str, str], count: int, full_bytes: int
) -> list[CheckpointCompleted]:
    """Each is asked for when all buffers are full, and the reader's state has about all keys."""
    keys = int(parameters["state_keys"])
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        hosted_run(
            Path(root),
            parameters,
            settings=settings,
            parallelism=PARALLELISM,
            asked={"pipeline": "relay"},
        ) as run,
    ):
        for number in range(1, count + 1):
            run.wait_for(lambda _: is_full(run, keys, full_bytes), FILL_TIMEOUT_S)
            checkpoint(run, number)
        return run.completed()


def small_records(count: int, slow_us: int) -> list[CheckpointCompleted]:
    """Aligned, with the default settings, while small records come faster than they are read."""
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        hosted_run(
            Path(root),
            {"counts": root, "slow_us": str(slow_us)},
            settings={"execution.checkpointing.interval": "1 h"},
            parallelism=PARALLELISM,
            asked={"pipeline": "small_records"},
        ) as run,
    ):
        for number in range(1, count + 1):
            due = SETTLED_RECORDS + number * BETWEEN_RECORDS
            run.wait_for(lambda _, due=due: total(Path(root), HANDLED) >= due, FILL_TIMEOUT_S)  # type: ignore[misc]
            checkpoint(run, number)
        progress(f"small records in flight at most: {most_in_flight(Path(root)):,}")
        return run.completed()


def checkpoint(run: StartedRun, number: int) -> None:
    """Ask for it, and wait until it is complete."""
    request_id = RequestId(f"checkpoint-{number}")
    submit(
        run.directory,
        TriggerCheckpoint(request_id=request_id, requested_by="bench", reason="bench"),
    )
    run.wait_for(lambda _: len(run.completed()) == number, CHECKPOINT_TIMEOUT_S)
    progress(f"checkpoint {number}: {run.completed()[-1].end_to_end_ms:,.0f} ms")


def is_full(run: StartedRun, keys: int, full_bytes: int) -> bool:
    """Some reader's channels hold about all that they may; keys are not spread evenly. The first
    `keys` records have a key each."""
    samples = [e.event for e in run.of(MetricsSampled)]
    newest = next((s for s in reversed(samples) if isinstance(s, MetricsSampled)), None)
    if newest is None:
        return False
    readers = [s for s in newest.subtasks if s.vertex == "relay"]
    if len(readers) != PARALLELISM or sum(s.records_in for s in readers) < keys:
        return False
    return max(s.queued_bytes for s in readers) >= PARALLELISM * full_bytes


if __name__ == "__main__":
    main()
