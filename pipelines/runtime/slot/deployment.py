"""Builds what one slot runs: its subtasks, its ackers, and what they share.

Every slot builds the pipeline from the flow's name and parameters, so no code object travels.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import SlotNetwork
from pipelines.connectors.beginning import Beginning, listing_once
from pipelines.domain.clock import Clock
from pipelines.domain.ids import Attempt
from pipelines.flows.registry import flow
from pipelines.runtime.control import Deploy
from pipelines.runtime.slot.acking_wires import AckingWires
from pipelines.runtime.slot.state_backends import StateBackends, state_backends
from pipelines.runtime.slot.subtask_building import SubtaskBuilder
from pipelines.runtime.subtask.acker_task import AckerTask
from pipelines.runtime.subtask.feed import Feed
from pipelines.runtime.subtask.restore_meter import MeteredFiles, RestoreMeter
from pipelines.runtime.subtask.restoring import RestorePoint
from pipelines.runtime.subtask.source_feed import SourceFeed
from pipelines.runtime.subtask.subtask import Subtask
from pipelines.runtime.subtask.subtask_reporter import SubtaskReporter
from pipelines.storage.store import CheckpointStore
from pipelines.storage.stores import CheckpointStores
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True)
class Deployment:
    subtasks: list[Subtask]
    sources: list[Subtask]
    gates: list[Gate]
    ackers: list[AckerTask]
    close: Callable[[], None]  # once no subtask runs any more


def deploy(
    message: Deploy,
    *,
    attempt: Attempt,
    subtask: int,
    network: SlotNetwork,
    uploads: Executor,
    reporter: SubtaskReporter,
    clock: Clock,
    meter: RestoreMeter,
) -> Deployment:
    """Takes longer the larger the state is; `meter` shows the progress.

    Raises Rejected (the flow or the restore point cannot be used) or CorruptSnapshot.
    """
    beginning = Beginning.unpacked(message.beginning)
    with listing_once(beginning.directories):
        pipeline = flow(message.pipeline).build(message.parameters)
    store = CheckpointStores(
        message.storage_roots,
        message.max_memory_state_bytes,
        compresses=message.compresses_snapshots,
    )
    point = _restore_point(store, message, meter)
    backends = state_backends(message.state, f"{message.run_id}-a{attempt}-{subtask}")
    builder = SubtaskBuilder(
        message,
        pipeline,
        store,
        point,
        attempt,
        subtask,
        network,
        reporter,
        clock,
        backends.create,
        _wires(message, pipeline, attempt, subtask, network, clock),
        beginning,
    )
    vertices = pipeline.graph.vertices
    meter.expect(file for vertex in vertices for file in builder.files_of(vertex))
    built = []
    for vertex in vertices:
        built.append(builder.build(vertex, uploads))
        meter.step()
    return Deployment(
        subtasks=[one.subtask for one in built],
        sources=[one.subtask for one in built if one.gate is None],
        gates=[one.gate for one in built if one.gate is not None],
        ackers=[] if builder.wires is None else builder.wires.ackers(),
        close=lambda: _close(backends, [one.feed for one in built]),
    )


def _wires(
    message: Deploy,
    pipeline: Pipeline,
    attempt: Attempt,
    subtask: int,
    network: SlotNetwork,
    clock: Clock,
) -> AckingWires | None:
    """None: the mode is not ACKED."""
    options, parallelism = message.barriers.acking, message.parallelism
    if options is None:
        return None
    return AckingWires(options, pipeline.graph, parallelism, attempt, subtask, network, clock)


def _close(backends: StateBackends, feeds: list[Feed]) -> None:
    backends.close()
    for feed in feeds:
        if isinstance(feed, SourceFeed):
            feed.close()


def _restore_point(
    store: CheckpointStore, message: Deploy, meter: RestoreMeter
) -> RestorePoint | None:
    location = message.restore_location
    if location is None:
        return None
    manifest = message.restore_manifest or store.manifest(location)
    dropped, forgets = message.dropped_states, message.forgets_state
    files = MeteredFiles(store, meter)
    return RestorePoint(
        files, location, manifest, dropped, run_id=message.run_id, forgets_state=forgets
    )
