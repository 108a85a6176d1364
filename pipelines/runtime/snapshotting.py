"""The asynchronous half of a snapshot: frozen state becomes durable files.

Runs beside the processing, on the slot's upload threads. Decides nothing: it turns an operator's
cut into handles, or raises what the store raises.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from pipelines.domain.ids import Attempt, Uid, channel_ends
from pipelines.domain.key_groups import range_of
from pipelines.domain.snapshots import (
    InFlightHandle,
    Json,
    OperatorSnapshot,
    StateHandle,
    SubtaskSnapshot,
)
from pipelines.runtime.chain import ChainPlace, OperatorCut
from pipelines.runtime.in_flight import InFlightRecords
from pipelines.runtime.key_times import KeyTime
from pipelines.runtime.restoring import StoredCommittables
from pipelines.state.backend import FrozenState
from pipelines.storage.manifest_file import files_of_subtask
from pipelines.storage.memory import check_travels
from pipelines.storage.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class SubtaskCut:
    """Everything frozen at one barrier. `positions` is the source's, in a source's chain."""

    place: ChainPlace
    operators: list[OperatorCut]
    positions: Json
    watermark_ms: int | None
    key_times_ms: list[KeyTime]
    reserved: Json = None


class SnapshotWriter:
    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def write(
        self,
        cut: SubtaskCut,
        location: str,
        *,
        open_format: bool,
        in_flight: Sequence[InFlightRecords] = (),
    ) -> SubtaskSnapshot:
        """Raises Retryable when the storage fails; the caller declines the checkpoint."""
        place = cut.place
        snapshot = SubtaskSnapshot(
            vertex=place.vertex.uid,
            subtask=place.subtask,
            operators=[self._operator(o, cut, location, open_format) for o in cut.operators],
            in_flight=[h for kept in in_flight for h in self._in_flight(kept, place, location)],
        )
        check_travels(files_of_subtask(snapshot))
        return snapshot

    def _in_flight(
        self, kept: InFlightRecords, place: ChainPlace, location: str
    ) -> Iterator[InFlightHandle]:
        """A file per channel, side and schema; a channel's schema may change between batches."""
        by_schema = groupby(kept.batches, key=lambda batch: batch.schema)
        for number, (schema, batches) in enumerate(by_schema):
            same = list(batches)
            side = "out" if kept.is_output else "in"
            ends = channel_ends(kept.channel)
            between = f"{ends.upstream}-{ends.source}-{ends.downstream}-{ends.port}-{ends.target}"
            stem = f"{between}-{side}-flight"
            file = self._store.write_batches(
                location, f"{stem}-{number}-a{place.attempt}", schema, same, open_format=False
            )
            rows = sum(batch.num_rows for batch in same)
            yield InFlightHandle(
                channel=kept.channel, is_output=kept.is_output, file=file, rows=rows
            )

    def _operator(
        self, operator: OperatorCut, cut: SubtaskCut, location: str, open_format: bool
    ) -> OperatorSnapshot:
        is_head = operator.uid == cut.place.vertex.uid
        return OperatorSnapshot(
            uid=operator.uid,
            states=list(self._states(operator, cut.place, location, open_format)),
            positions=cut.positions if is_head else None,
            reserved=cut.reserved if is_head else None,
            committables=[
                msgspec.to_builtins(
                    StoredCommittables(checkpoint_id=p.checkpoint_id, items=list(p.committables))
                )
                for p in operator.prepared
            ],
            counters=operator.counters,
            watermark_ms=cut.watermark_ms if is_head else None,
            key_times_ms=cut.key_times_ms if is_head else [],
        )

    def _states(
        self, operator: OperatorCut, place: ChainPlace, location: str, open_format: bool
    ) -> Iterator[StateHandle]:
        groups = range_of(place.subtask, place.parallelism, place.max_parallelism)
        for state in operator.states:
            if state.rows == 0:
                continue
            file = self._store.write_batches(
                location,
                _stem(operator.uid, place.subtask, state, place.attempt),
                state.schema,
                state.batches,
                open_format=open_format,
            )
            yield StateHandle(
                state=state.name,
                kind=state.kind,
                file=file,
                key_groups=(groups.first, groups.last),
                rows=state.rows,
                schema={field.name: str(field.type) for field in state.schema},
            )


def snapshot_bytes(snapshot: SubtaskSnapshot) -> int:
    """Of the state; records in flight are counted apart."""
    files = (f for operator in snapshot.operators for s in operator.states for f in s.files)
    return sum(file.length for file in files)


def _stem(uid: Uid, subtask: int, state: FrozenState, attempt: Attempt) -> str:
    """Unique per attempt, so that a zombie never writes under a name of its successor."""
    return f"{uid}-{subtask}-{state.name}-a{attempt}"
