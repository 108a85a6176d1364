"""How long does a checkpoint take while a slow reader has filled every buffer before it?

It measures two cases. In the first, channels hold up to their capacity, and aligned checkpoints are
compared with unaligned ones. In the second, checkpoints are aligned, with small records and the
default settings, so channels hold only as much as their reader consumes in time.

Expected by a sketch: an aligned barrier waits for its turn behind two full channels of 8 MiB at the
reader's pace, ten to twenty seconds here. An unaligned barrier waits for nothing, but the content
of the channels is written: some tens of milliseconds, and about as much to gather. State of the
reader (`--keys 1000000`: some 20 MB more to write) adds the same to both. Slots are plain processes
here, because the benchmark measures the engine, not how Spark starts it.

Small records have 100 bytes and take 2.5 ms of the reader's time each. Two full channels of 8 MiB
would hold 140,000 of them for each reader, or six minutes. Within the target of 150 ms, 60 of them
are queued and as many are in work, so a barrier takes about a third of a second.
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
SETTLED_RECORDS = 2_000  # handled before the first checkpoint of small records
BETWEEN_RECORDS = 500  # handled between two of these checkpoints
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
    """Measures both cases.

    The reader takes `slow_ms` for a batch, and `slow_us` for a small record. A channel that holds
    `full_bytes` counts as full.
    """
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
    """Triggers each checkpoint when buffers are full and the reader's state has about all keys."""
    keys = int(parameters["state_keys"])
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        hosted_run(
            Path(root),
            parameters,
            settings=settings,
            parallelism=PARALLELISM,
            spec_fields={"pipeline": "relay"},
        ) as run,
    ):
        for number in range(1, count + 1):
            run.wait_for(lambda _: is_full(run, keys, full_bytes), FILL_TIMEOUT_S)
            checkpoint(run, number)
        return run.completed()


def small_records(count: int, slow_us: int) -> list[CheckpointCompleted]:
    """Takes aligned checkpoints, with default settings, while small records come too fast."""
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        hosted_run(
            Path(root),
            {"counts": root, "slow_us": str(slow_us)},
            settings={"execution.checkpointing.interval": "1 h"},
            parallelism=PARALLELISM,
            spec_fields={"pipeline": "small_records"},
        ) as run,
    ):
        for number in range(1, count + 1):
            due = SETTLED_RECORDS + number * BETWEEN_RECORDS
            run.wait_for(lambda _, due=due: total(Path(root), HANDLED) >= due, FILL_TIMEOUT_S)  # type: ignore[misc]
            checkpoint(run, number)
        progress(f"small records in flight at most: {most_in_flight(Path(root)):,}")
        return run.completed()


def checkpoint(run: StartedRun, number: int) -> None:
    """Triggers a checkpoint, and waits until it is complete."""
    request_id = RequestId(f"checkpoint-{number}")
    submit(
        run.directory,
        TriggerCheckpoint(request_id=request_id, requested_by="bench", reason="bench"),
    )
    run.wait_for(lambda _: len(run.completed()) == number, CHECKPOINT_TIMEOUT_S)
    progress(f"checkpoint {number}: {run.completed()[-1].end_to_end_ms:,.0f} ms")


def is_full(run: StartedRun, keys: int, full_bytes: int) -> bool:
    """Returns True if one reader's channels are about full, and its state has about all keys.

    Keys are not spread evenly, so one reader is enough. The first `keys` records have a new key
    each.
    """
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
