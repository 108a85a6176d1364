"""Builds everything that one slot runs: its subtasks, its ackers, and the parts that they share.

Every slot builds the pipeline from the flow's name and parameters, so no code object is sent.
Shipped code is a wheel; the slot checks its digest before it imports anything from it. The settings
choose the state backend of the operators. This module sets it up on this machine; the package
`state` implements the backends.
"""

import errno
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import SlotNetwork
from pipelines.connectors.positions import Beginning, listing_once
from pipelines.domain.clock import Clock
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import Attempt
from pipelines.domain.settings import StateBackendType, StateOptions
from pipelines.flows.finding import find_flow
from pipelines.packages.loading import LoadedCode, activate
from pipelines.runtime.control import Deploy
from pipelines.runtime.slot.subtask_building import AckingWires, SubtaskBuilder
from pipelines.runtime.subtask.acking.acker_task import AckerTask
from pipelines.runtime.subtask.feed import Feed
from pipelines.runtime.subtask.snapshots.restoring import MeteredFiles, RestoreMeter, RestorePoint
from pipelines.runtime.subtask.snapshots.upload_threads import never
from pipelines.runtime.subtask.subtask import Subtask
from pipelines.runtime.subtask.subtask_reporter import SubtaskReporter
from pipelines.state.backend import BackendFactory
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.on_disk.rocksdb import RocksDbSlot
from pipelines.state.on_disk.sorted_files import SlotMemory, WorkingDirectory
from pipelines.storage.store import CheckpointStore
from pipelines.storage.stores import CheckpointStores
from pipelines.stream import Pipeline

_WRONG = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors of a directory whose name or permissions are wrong: waiting does not repair them."""


@dataclass(frozen=True, slots=True)
class StateBackends:
    """Call `close` once no operator runs any more."""

    create: BackendFactory
    close: Callable[[], None]


def state_backends(options: StateOptions, label: str) -> StateBackends:
    """Sets up the backend. `label` names the slot's own directory.

    Raises Rejected if that directory can never be made there, Retryable if it cannot be made now.
    """
    match options.backend:
        case StateBackendType.HASHMAP:
            create = partial(HashMapBackend, is_incremental=options.is_incremental)
            return StateBackends(create, lambda: None)
        case StateBackendType.ROCKSDB:
            directory = _directory(options.rocksdb_directory, label)
            memory = SlotMemory(options.rocksdb_memory_bytes)
            slot = RocksDbSlot(directory, memory, options.is_incremental)
            return StateBackends(slot, directory.close)


def _directory(root: str, label: str) -> WorkingDirectory:
    place = root or tempfile.gettempdir()
    try:
        return WorkingDirectory(Path(place), label)
    except OSError as error:
        what = f"No database can be kept in {place}: {error.strerror}."
        if error.errno not in _WRONG:  # a full or failing disk, too many open files
            raise Retryable(what) from error
        raise Rejected(
            f"{what} Set state.backend.rocksdb.localdir to a directory that every slot can write"
            " to."
        ) from error


@dataclass(frozen=True, slots=True)
class Deployment:
    subtasks: list[Subtask]
    sources: list[Subtask]
    gates: list[Gate]
    ackers: list[AckerTask]
    close: Callable[[], None]  # once no subtask runs any more


def built_pipeline(message: Deploy, packages: Path | None = None) -> Pipeline:
    """Builds the pipeline from the flow's name and parameters, with the run's own listings.

    `packages`: the directory where the host puts the packages that it sends, or None if it sends
    none. Raises Rejected.
    """
    beginning, code = Beginning.unpacked(message.beginning), _sent_code(message, packages)
    with listing_once(beginning.directories):
        return find_flow(message.pipeline, code).build(message.parameters)


def _sent_code(message: Deploy, packages: Path | None) -> LoadedCode | None:
    """Returns exactly the code that the run's manifests name, or None if it is installed here."""
    if message.code is None:
        return None
    if packages is None:
        raise Rejected(
            f"The package {message.code.described} was not sent to this slot; install it on every"
            " machine, and start the pipeline without --code."
        )
    return activate(message.code, packages)


def deploy(
    message: Deploy,
    pipeline: Pipeline,
    *,
    attempt: Attempt,
    subtask: int,
    network: SlotNetwork,
    uploads: Executor,
    uploads_starve: Callable[[], bool] = never,
    reporter: SubtaskReporter,
    clock: Clock,
    meter: RestoreMeter,
) -> Deployment:
    """Builds the subtasks and restores their state. `meter` counts the progress: large state takes
    long.

    Raises Rejected (the restore point cannot be used) or CorruptSnapshot.
    """
    beginning = Beginning.unpacked(message.beginning)
    store = CheckpointStores(
        message.storage_roots,
        message.max_memory_state_bytes,
        compresses=message.compresses_snapshots,
        renamed_point=message.restore_location,
        new_names=message.renamed_uids,
    )
    point = _restore_point(store, message, meter)
    backends = state_backends(message.state, f"{message.run_id}-a{attempt}-{subtask}")
    builder = SubtaskBuilder(
        message=message,
        pipeline=pipeline,
        store=store,
        point=point,
        attempt=attempt,
        subtask=subtask,
        network=network,
        reporter=reporter,
        clock=clock,
        backends=backends.create,
        wires=_wires(message, pipeline, attempt, subtask, network, clock),
        uploads_starve=uploads_starve,
        beginning=beginning,
    )
    vertices = [
        v for v in pipeline.graph.vertices if subtask < (v.parallelism or message.parallelism)
    ]
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
    """Returns None unless the mode is ACKED."""
    options, parallelism = message.acking, message.parallelism
    if options is None:
        return None
    return AckingWires(
        options=options,
        graph=pipeline.graph,
        parallelism=parallelism,
        attempt=attempt,
        subtask=subtask,
        network=network,
        clock=clock,
    )


def _close(backends: StateBackends, feeds: list[Feed]) -> None:
    backends.close()
    for feed in feeds:
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
