"""How many acknowledgements does the coordinator take in a second, and does it stay flat?

Expected: an acknowledgement is two dictionary operations and a comparison of two lengths, about a
microsecond for any number of subtasks. So the coordinator takes far above 100,000 a second at
10,000 subtasks. That is within a factor of two of 100 subtasks, whose snapshots fit the processor's
caches.

Subtasks are simulated: their acknowledgements come as values, so that messages and the journal do
not count. `host_acks_per_s` includes both: messages are decoded, and journalled as events. With
`--keys N` each acknowledgement names a file with its part of N keys, which the coordinator never
opens.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.benchmark import Benchmark, Fields, at_least
from pipelines.bus.journal import JournalWriter
from pipelines.domain.checkpoint_failures import SubtaskPhases
from pipelines.domain.events import SubtaskAcknowledged
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.run import RunDirectory
from pipelines.domain.snapshots import FileHandle, OperatorSnapshot, StateHandle, SubtaskSnapshot
from pipelines.protocol.coordination import CheckpointCoordinator
from pipelines.protocol.effects import Complete, Finalize, SubtaskId
from pipelines.protocol.triggering import PERIODIC
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.control import SLOT_DECODER, Acknowledged
from pipelines.storage.manifests import digest_of

BARS = (at_least("acks_per_s", 100_000), at_least("flat_ratio", 0.5))
SUBTASKS = (100, 1_000, 10_000)
SUBTASKS_OF_VERTEX = 100
KEY_BYTES = 25
ACKNOWLEDGEMENTS = 300_000  # for each number of subtasks
ROUNDS = 5  # the median counts


def main() -> None:
    benchmark = Benchmark("coordinator", __doc__)
    benchmark.options.add_argument("--subtasks", type=int, default=SUBTASKS[-1])
    benchmark.options.add_argument("--acknowledgements", type=int, default=ACKNOWLEDGEMENTS)
    benchmark.options.add_argument(
        "--keys", type=int, default=0, help="in the state of all subtasks together"
    )
    options = benchmark.options.parse()
    benchmark.report(measure(options.subtasks, options.acknowledgements, options.keys), BARS)


def measure(largest: int, acknowledgements: int, keys: int) -> Fields:
    """`flat_ratio` is the acknowledgements a second of the most subtasks over the fewest."""
    counts = sorted({*(n for n in SUBTASKS if n < largest), largest})
    by_subtasks = {
        str(count): round(_median(lambda n=count: _pure(n, acknowledgements, keys)))  # type: ignore[misc]
        for count in counts
    }
    return {
        "acks_per_s": by_subtasks[str(largest)],
        "flat_ratio": round(by_subtasks[str(largest)] / by_subtasks[str(counts[0])], 3),
        "by_subtasks": by_subtasks,
        "host_acks_per_s": round(_hosted(largest, keys)),
        "keys": keys,
    }


def _median(measured: Callable[[], float]) -> float:
    return statistics.median(measured() for _ in range(ROUNDS))


def _pure(subtask_count: int, acknowledgements: int, keys: int) -> float:
    """Measures acknowledgements a second, over whole checkpoints from trigger to completion."""
    snapshots = snapshots_of(subtask_count, keys)
    coordinator = _coordinator(snapshots)
    checkpoints = max(1, acknowledgements // subtask_count)
    began_s = time.perf_counter()
    for number in range(1, checkpoints + 1):
        _complete_one(coordinator, CheckpointId(number), snapshots)
    return checkpoints * subtask_count / (time.perf_counter() - began_s)


def _complete_one(
    coordinator: CheckpointCoordinator,
    checkpoint_id: CheckpointId,
    snapshots: list[SubtaskSnapshot],
) -> None:
    coordinator.on_trigger(PERIODIC)
    effects = []
    for snapshot in snapshots:
        effects = coordinator.on_acknowledged(checkpoint_id, snapshot)
    if not isinstance(effects[0], Finalize):
        raise RuntimeError("the last acknowledgement asks for the manifest")
    if not isinstance(coordinator.on_published(checkpoint_id)[0], Complete):
        raise RuntimeError("a published checkpoint is complete")


def _hosted(subtask_count: int, keys: int) -> float:
    """Measures one checkpoint with all work of the driver: decode, journal, coordinate."""
    snapshots = snapshots_of(subtask_count, keys)
    coordinator = _coordinator(snapshots)
    lines = [msgspec.json.encode(_message(snapshot)) for snapshot in snapshots]
    coordinator.on_trigger(PERIODIC)
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        JournalWriter(
            RunDirectory(Path(root)), RunId("bench"), SystemClock(), lambda run, number: None
        ) as journal,
    ):
        began_s = time.perf_counter()
        for line in lines:
            message = SLOT_DECODER.decode(line)
            if not isinstance(message, Acknowledged):
                raise RuntimeError("acknowledgements were encoded")
            event = SubtaskAcknowledged(checkpoint_id=CheckpointId(1), phases=message.phases)
            journal.append(event, Attempt(1))
            coordinator.on_acknowledged(message.checkpoint_id, message.snapshot)
        return subtask_count / (time.perf_counter() - began_s)


def _coordinator(snapshots: list[SubtaskSnapshot]) -> CheckpointCoordinator:
    coordinator = CheckpointCoordinator(first_id=CheckpointId(1), tolerable_failures=0)
    coordinator.on_running(SubtaskId(s.vertex, s.subtask) for s in snapshots)
    return coordinator


def snapshots_of(subtask_count: int, keys: int) -> list[SubtaskSnapshot]:
    return [_snapshot(number, subtask_count, keys) for number in range(subtask_count)]


def _snapshot(number: int, subtask_count: int, keys: int) -> SubtaskSnapshot:
    vertex, subtask = divmod(number, SUBTASKS_OF_VERTEX)
    uid = Uid(f"vertex-{vertex}")
    share = (number + 1) * keys // subtask_count - number * keys // subtask_count
    states = [_state(f"{uid}-{subtask}.arrow", share)] if share else []
    operator = OperatorSnapshot(uid=uid, states=states, counters={"records": 1})
    return SubtaskSnapshot(vertex=uid, subtask=subtask, operators=[operator])


def _state(name: str, keys: int) -> StateHandle:
    file = FileHandle(name=name, length=keys * KEY_BYTES, digest=digest_of(name.encode()))
    groups = (0, DEFAULT_MAX_PARALLELISM - 1)
    schema = {"key": "int64", "count": "int64"}
    return StateHandle(
        state="totals", kind="table", file=file, key_groups=groups, rows=keys, schema=schema
    )


def _message(snapshot: SubtaskSnapshot) -> Acknowledged:
    phases = SubtaskPhases(
        vertex=snapshot.vertex,
        subtask=snapshot.subtask,
        start_delay_ms=1.0,
        alignment_ms=2.0,
        sync_ms=0.1,
        async_ms=5.0,
        acknowledged_ms=0.0,
        state_bytes=1_000_000,
        uploaded_bytes=1_000_000,
        channels=[],
    )
    return Acknowledged(
        checkpoint_id=CheckpointId(1),
        snapshot=snapshot,
        phases=phases,
        source_records=0,
        watermark_ms=None,
    )


if __name__ == "__main__":
    main()
