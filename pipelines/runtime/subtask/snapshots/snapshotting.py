"""The asynchronous half of a snapshot: frozen state becomes durable files, which are acknowledged.

Runs on the slot's upload threads, while the subtask continues. It turns an operator's cut into
handles, or raises the store's errors. For an increment it implements
`state.backend.IncrementFiles`: it places the files of one state in the store, and counts the bytes
that are really uploaded. Between its cut and its upload, an unaligned snapshot gathers its records
in flight. A failure declines the checkpoint and has no other effect.

Source: Flink, `ChannelStateWriter` and its futures.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.disk.files import blocks_of
from pipelines.domain.checkpoint_failures import ChannelAlignment, SubtaskPhases
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier
from pipelines.domain.errors import check
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, Uid, channel_ends
from pipelines.domain.snapshots import (
    FileHandle,
    InFlightHandle,
    Json,
    OperatorSnapshot,
    SegmentHandle,
    StateFormat,
    StateHandle,
    SubtaskSnapshot,
)
from pipelines.points.stored_output import segments_of, stored_committables
from pipelines.protocol.retention import shared_name
from pipelines.runtime.subtask.chains.chain_node import ChainPlace, OperatorCut
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords, KeyTime, overtaken_on
from pipelines.runtime.subtask.subtask_reporter import SubtaskReporter
from pipelines.state.backend import FrozenState, StoredIncrement
from pipelines.storage.manifests import files_of_subtask
from pipelines.storage.state_file import SEPARATOR, file_stem
from pipelines.storage.store import CheckpointStore, shared_location
from pipelines.storage.stores import check_travels


class IncrementUpload:
    """The upload of one increment. `stem` is unique among the states and subtasks of the run."""

    def __init__(
        self,
        store: CheckpointStore,
        location: str,
        checkpoint_id: CheckpointId,
        attempt: Attempt,
        stem: str,
    ) -> None:
        self._store = store
        self._location = location
        self._checkpoint_id = checkpoint_id
        self._attempt = attempt
        self._stem = stem
        self.uploaded_bytes = 0

    def write_rows(
        self, label: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> FileHandle:
        place = shared_location(self._location)
        written = self._store.write_batches(
            place, self._name(label), schema, batches, open_format=False
        )
        return self._counted(written, is_shared=True)

    def copy(self, label: str, path: Path, *, is_shared: bool) -> FileHandle:
        place = shared_location(self._location) if is_shared else self._location
        written = self._store.write_file(place, self._name(label), blocks_of(path))
        return self._counted(written, is_shared=is_shared)

    def _name(self, label: str) -> str:
        return shared_name(self._checkpoint_id, self._attempt, f"{self._stem}{SEPARATOR}{label}")

    def _counted(self, written: FileHandle, *, is_shared: bool) -> FileHandle:
        self.uploaded_bytes += written.length
        return msgspec.structs.replace(written, is_shared=is_shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskCut:
    """Everything frozen at one barrier. `positions` belongs to the source, in a source's chain."""

    place: ChainPlace
    operators: list[OperatorCut]
    positions: Json
    watermark_ms: int | None
    key_times_ms: list[KeyTime]
    reserved: Json = None
    replayed: Json = None

    @property
    def has_copies(self) -> bool:
        """True if a state keeps a copy of rows until `release`."""
        return any(state.release for operator in self.operators for state in operator.states)

    def release(self) -> None:
        """Call it at the end from any thread; raises what writing to the local disk raises."""
        with ExitStack() as releases:  # all of them, even if one raises
            for operator in self.operators:
                for state in operator.states:
                    if state.release is not None:
                        releases.callback(state.release)


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """`uploaded_bytes` counts the files written now; the snapshot may refer to older ones, too."""

    snapshot: SubtaskSnapshot
    uploaded_bytes: int


class SnapshotWriter:
    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def write(
        self,
        cut: SubtaskCut,
        checkpoint_id: CheckpointId,
        location: str,
        *,
        open_format: bool,
        in_flight: Sequence[InFlightRecords] = (),
    ) -> WrittenSnapshot:
        """Raises Retryable if the storage fails; the caller declines the checkpoint."""
        place = cut.place
        upload = _Upload(self._store, place, checkpoint_id, location, open_format)
        snapshot = SubtaskSnapshot(
            vertex=place.vertex.uid,
            subtask=place.subtask,
            operators=[_operator(operator, cut, upload) for operator in cut.operators],
            in_flight=[handle for kept in in_flight for handle in upload.in_flight(kept)],
        )
        check_travels(files_of_subtask(snapshot))
        return WrittenSnapshot(snapshot, upload.uploaded_bytes)


class _Upload:
    """The files of one subtask for one checkpoint."""

    def __init__(
        self,
        store: CheckpointStore,
        place: ChainPlace,
        checkpoint_id: CheckpointId,
        location: str,
        open_format: bool,
    ) -> None:
        self._store = store
        self._place = place
        self._checkpoint_id = checkpoint_id
        self._location = location
        self._open_format = open_format
        self.uploaded_bytes = 0

    def states(self, operator: OperatorCut) -> Iterator[StateHandle]:
        place = self._place
        groups = place.key_groups
        for state in operator.states:
            if state.rows == 0:
                continue
            stored = self._stored(operator.uid, state)
            yield StateHandle(
                state=state.name,
                kind=state.kind,
                file=stored.file,
                key_groups=(groups.first, groups.last),
                rows=state.rows,
                schema={field.name: str(field.type) for field in state.schema},
                format=stored.format,
                parts=list(stored.parts),
            )

    def in_flight(self, kept: InFlightRecords) -> Iterator[InFlightHandle]:
        """Writes a file per channel, side and schema; batches of a channel may differ in schema."""
        by_schema = groupby(kept.batches, key=lambda batch: batch.schema)
        for number, (schema, batches) in enumerate(by_schema):
            same = list(batches)
            side = "out" if kept.is_output else "in"
            ends = channel_ends(kept.channel)
            channel = (ends.upstream, ends.source, ends.downstream, ends.port, ends.target)
            file = self._store.write_batches(
                self._location,
                self._stem(*channel, side, "flight", number),
                schema,
                same,
                open_format=False,
            )
            self.uploaded_bytes += file.length
            rows = sum(batch.num_rows for batch in same)
            yield InFlightHandle(
                channel=kept.channel, is_output=kept.is_output, file=file, rows=rows
            )

    def segments(self, operator: OperatorCut) -> Iterator[SegmentHandle]:
        """Writes a file per segment, again for every snapshot until the segment is published."""
        for number, (checkpoint_id, segment) in enumerate(segments_of(operator.prepared)):
            batches = list(segment.batches)
            file = self._store.write_batches(
                self._location,
                self._stem(operator.uid, self._place.subtask, "segment", number),
                batches[0].schema,
                batches,
                open_format=False,
            )
            self.uploaded_bytes += file.length
            yield SegmentHandle(
                checkpoint_id=checkpoint_id, marker=segment.marker, file=file, rows=segment.rows
            )

    def _stored(self, uid: Uid, state: FrozenState) -> StoredIncrement:
        """Stores only changes if the backend tracks them; otherwise every row."""
        if state.increment is None:
            return StoredIncrement(StateFormat.ROWS, self._whole(uid, state), ())
        upload = IncrementUpload(
            self._store,
            self._location,
            self._checkpoint_id,
            self._place.attempt,
            file_stem(uid, self._place.subtask, state.name),
        )
        stored = state.increment.write(upload)
        self.uploaded_bytes += upload.uploaded_bytes
        return stored

    def _whole(self, uid: Uid, state: FrozenState) -> FileHandle:
        file = self._store.write_batches(
            self._location,
            self._stem(uid, self._place.subtask, state.name),
            state.schema,
            state.batches,
            open_format=self._open_format,
        )
        self.uploaded_bytes += file.length
        return file

    def _stem(self, *parts: object) -> str:
        """Returns a name with the attempt, so that no zombie writes under a successor's name."""
        return file_stem(*parts, f"a{self._place.attempt}")


def _operator(operator: OperatorCut, cut: SubtaskCut, upload: _Upload) -> OperatorSnapshot:
    is_head = operator.uid == cut.place.vertex.uid
    return OperatorSnapshot(
        uid=operator.uid,
        states=list(upload.states(operator)),
        positions=cut.positions if is_head else None,
        reserved=cut.reserved if is_head else None,
        replayed=cut.replayed if is_head else None,
        committables=list(stored_committables(operator.prepared)),
        segments=list(upload.segments(operator)),
        quarantined=list(stored_committables(operator.quarantined)),
        outputs=list(operator.outputs),
        counters=operator.counters,
        watermark_ms=cut.watermark_ms if is_head else None,
        assigned_ms=operator.assigned_ms,
        key_times_ms=cut.key_times_ms if is_head else [],
    )


def snapshot_bytes(snapshot: SubtaskSnapshot) -> int:
    """Returns the bytes of the state; records in flight are counted separately."""
    files = (f for operator in snapshot.operators for s in operator.states for f in s.files)
    return sum(file.length for file in files)


@dataclass(slots=True, kw_only=True)
class Gathering:
    """A snapshot between its cut and its upload.

    In `waiting_outputs` the barrier still waits behind records; at `due_ms` it overtakes them.
    """

    barrier: Barrier
    cut: SubtaskCut
    start_delay_ms: float
    sync_ms: float
    cut_ms: float  # monotonic, the end of the cut
    in_flight: list[InFlightRecords]
    waiting_outputs: list[Output] = field(default_factory=list)
    due_ms: float | None = None
    awaits_inputs: bool = True
    alignment_ms: float = 0.0
    channels: list[ChannelAlignment] = field(default_factory=list)
    is_unaligned: bool = False
    is_over: bool = False  # no upload may begin any more; upload threads read this

    @property
    def is_complete(self) -> bool:
        return not self.awaits_inputs and not self.waiting_outputs

    def on_inputs(
        self,
        alignment_ms: float,
        channels: Iterable[ChannelAlignment],
        recorded: Iterable[InFlightRecords] = (),
    ) -> None:
        """Every barrier has arrived."""
        check(self.awaits_inputs, "inputs are complete once", of=self.barrier.checkpoint_id)
        self.alignment_ms, self.channels = alignment_ms, list(channels)
        self.in_flight = [*self.in_flight, *recorded]
        self.awaits_inputs = False

    def look_at_outputs(self, now_ms: float) -> None:
        """Drops outputs that have sent the barrier; from `due_ms` on, overtakes at the others."""
        checkpoint_id = self.barrier.checkpoint_id
        self.waiting_outputs = [o for o in self.waiting_outputs if o.holds_barrier(checkpoint_id)]
        if self.due_ms is not None and now_ms >= self.due_ms:
            self._overtake()

    def _overtake(self) -> None:
        for output in self.waiting_outputs:
            self.in_flight += overtaken_on(output, self.barrier)
            self.is_unaligned = True
        self.waiting_outputs = []


class SnapshotUpload:
    """The uploads of one subtask, one after the other or several at once.

    Guarantee: no upload begins once the subtask's thread knows that its checkpoint is over.
    """

    def __init__(
        self,
        place: ChainPlace,
        writer: SnapshotWriter,
        threads: Executor,
        reporter: SubtaskReporter,
        clock: Clock,
    ) -> None:
        self._place = place
        self._writer = writer
        self._threads = threads
        self._reporter = reporter
        self._clock = clock
        self._started: dict[CheckpointId, Gathering] = {}  # of checkpoints that are not over

    def start(self, gathered: Gathering) -> None:
        checkpoint_id = gathered.barrier.checkpoint_id
        check(gathered.is_complete, "a snapshot is complete before its upload", of=checkpoint_id)
        is_new = checkpoint_id not in self._started
        check(is_new, "a subtask uploads a checkpoint once", checkpoint_id=checkpoint_id)
        self._started[checkpoint_id] = gathered
        self._threads.submit(self._upload, gathered)

    def drop(self, gathered: Gathering) -> None:
        """Releases a cut that is not uploaded.

        An error is not reported here: the next upload meets the same write, and declines.
        """
        if gathered.cut.has_copies:
            self._threads.submit(gathered.cut.release)

    def has_started(self, checkpoint_id: CheckpointId) -> bool:
        """Returns False again once the checkpoint is over."""
        return checkpoint_id in self._started

    def on_over(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint has completed or aborted."""
        gathered = self._started.pop(checkpoint_id, None)
        if gathered is not None:
            gathered.is_over = True

    def _upload(self, gathered: Gathering) -> None:
        """Runs on an upload thread."""
        try:
            self._try_upload(gathered)
        except Exception as error:  # otherwise an upload thread's error would go unnoticed
            self._reporter.declined(self._place, gathered.barrier.checkpoint_id, error)

    def _try_upload(self, gathered: Gathering) -> None:
        self._reporter.reach(FaultPoint.UPLOADING)
        try:
            written = self._written(gathered)
        finally:
            gathered.cut.release()
        if written is None:
            return
        self._reporter.reach(FaultPoint.UPLOADED)
        phases = self._phases(gathered, written)
        self._reporter.acknowledged(gathered.barrier.checkpoint_id, written.snapshot, phases)

    def _written(self, gathered: Gathering) -> WrittenSnapshot | None:
        """Returns None if the checkpoint is over: the coordinator no longer waits for it."""
        if gathered.is_over:
            return None
        barrier = gathered.barrier
        return self._writer.write(
            gathered.cut,
            barrier.checkpoint_id,
            barrier.location,
            open_format=barrier.is_savepoint and not barrier.is_native,
            in_flight=gathered.in_flight,
        )

    def _phases(self, gathered: Gathering, written: WrittenSnapshot) -> SubtaskPhases:
        return SubtaskPhases(
            vertex=self._place.vertex.uid,
            subtask=self._place.subtask,
            start_delay_ms=gathered.start_delay_ms,
            alignment_ms=gathered.alignment_ms,
            sync_ms=gathered.sync_ms,
            async_ms=self._clock.monotonic_ms() - gathered.cut_ms,
            acknowledged_ms=0.0,  # the coordinator fills this in, on its own clock
            state_bytes=snapshot_bytes(written.snapshot),
            uploaded_bytes=written.uploaded_bytes,
            is_unaligned=gathered.is_unaligned,
            persisted_bytes=written.snapshot.in_flight_bytes,
            channels=gathered.channels,
        )
