"""In-flight records at another parallelism reach their owner once and in order."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import EdgeKind, Vertex, VertexInput
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid, channel_ends, channel_id
from pipelines.domain.key_groups import owner_of
from pipelines.domain.snapshots import (
    FORMAT_VERSION,
    FileHandle,
    InFlightHandle,
    Manifest,
    SubtaskSnapshot,
)
from pipelines.domain.status import CheckpointKind
from pipelines.runtime.subtask.snapshots.in_flight import InFlightShare
from pipelines.state.hashing import key_groups, key_hashes
from tests.unit.runtime.fakes import batch_of, keys_of

UP, DOWN = Uid("up"), Uid("down")
MAX_PARALLELISM = 16


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("run", [None, 1, 4])
@pytest.mark.parametrize(("old", "new"), [(2, 2), (2, 1), (1, 3), (3, 2), (2, 5)])
def test_each_keyed_record_goes_once_to_its_new_owner_in_order(
    seed: int, old: int, new: int, run: int | None
) -> None:
    """`run` is the parallelism of the run that cut the point, if the reader had its own."""
    stored = Stored(random.Random(seed), old, run)

    taken = {subtask: stored.share(EdgeKind.HASH, subtask, new) for subtask in range(new)}

    everything = [place for places in stored.channels.values() for place in places]
    assert sorted(p for places in taken.values() for p in places) == sorted(everything)
    for subtask, places in taken.items():
        assert {owner(key, new) for key, _ in places} <= {subtask}
        for sent in stored.channels.values():
            assert [p for p in places if p in sent] == [p for p in sent if p in places]


@pytest.mark.parametrize("kind", [EdgeKind.REBALANCE, EdgeKind.FORWARD])
@pytest.mark.parametrize(("old", "new"), [(2, 2), (3, 2), (2, 3)])
def test_records_without_a_key_are_restored_exactly_once(
    kind: EdgeKind, old: int, new: int
) -> None:
    stored = Stored(random.Random(1), old)

    taken = [stored.share(kind, subtask, new) for subtask in range(new)]

    everything = [place for places in stored.channels.values() for place in places]
    assert sorted(place for places in taken for place in places) == sorted(everything)


@pytest.mark.parametrize("run", [None, 3])
def test_broadcast_records_are_restored_only_at_their_old_parallelism(
    run: int | None,
) -> None:
    stored = Stored(random.Random(1), 2, run)

    for subtask in range(2):
        sent = [places for name, places in stored.channels.items() if name.endswith(f"[{subtask}]")]
        own = sorted(place for places in sent for place in places)
        assert sorted(stored.share(EdgeKind.BROADCAST, subtask, 2)) == own
    for parallelism in (1, 3):
        with pytest.raises(Rejected, match=r"broadcast to 'down' .* at parallelism 2"):
            stored.share(EdgeKind.BROADCAST, 0, parallelism)


def test_queued_records_come_before_records_that_waited_at_the_writer() -> None:
    stored = Stored(random.Random(3), 1)

    places = stored.share(EdgeKind.HASH, 0, 1)

    assert places == next(iter(stored.channels.values()))


def test_a_channel_name_parses_back_into_its_ends() -> None:
    name = channel_id(Uid("a.b-c.0"), 12, Uid("d.e.1"), 3, 45)

    assert channel_ends(name) == (Uid("a.b-c.0"), 12, Uid("d.e.1"), 3, 45)
    with pytest.raises(ValueError, match="names no channel"):
        channel_ends(name[:-1])  # type: ignore[arg-type]


def owner(key: int, parallelism: int) -> int:
    batch = batch_of([(key, 0)])
    group = int(key_groups(key_hashes(batch, ("key",)), MAX_PARALLELISM)[0])
    return owner_of(group, parallelism, MAX_PARALLELISM)


@dataclass
class Stored:
    """A point with records in flight between two vertices; a place is (key, number)."""

    rng: random.Random
    parallelism: int  # the reader's
    run_parallelism: int | None = None  # None means the same
    files: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    channels: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outputs: list[InFlightHandle] = []
        self.inputs: list[InFlightHandle] = []
        number = 0
        for source in range(self.parallelism):
            for target in range(self.parallelism):
                channel = channel_id(UP, source, DOWN, 0, target)
                keys = [k for k in range(40) if owner(k, self.parallelism) == target]
                for side, handles in ((False, self.inputs), (True, self.outputs)):
                    rows = [(self.rng.choice(keys), number + i) for i in range(6)]
                    number += 6
                    self.channels.setdefault(channel, []).extend(rows)
                    name = f"{channel}-{side}"
                    self.files[name] = [batch_of(rows[:2]), batch_of(rows[2:])]
                    file = FileHandle(name=name, length=1, digest="")
                    handles.append(
                        InFlightHandle(channel=channel, is_output=side, file=file, rows=6)
                    )

    def share(self, kind: EdgeKind, subtask: int, parallelism: int) -> list[tuple[int, int]]:
        hash_by = ("key",) if kind is EdgeKind.HASH else ()
        vertex = Vertex(
            DOWN,
            (DOWN,),
            (
                VertexInput(
                    port=0, upstream_vertex=UP, upstream_node=UP, hash_by=hash_by, kind=kind
                ),
            ),
        )
        share = InFlightShare(self.manifest(), vertex, subtask, parallelism)
        return [
            place
            for port, batch in share.read(self.read)
            for place in zip(keys_of(batch), numbers_of(batch), strict=True)
            if port == 0
        ]

    def read(self, file: FileHandle) -> Iterator[pa.RecordBatch]:
        return iter(self.files[file.name])

    def manifest(self) -> Manifest:
        # Outputs first, as the upstream vertex comes first in a manifest.
        snapshots = [
            SubtaskSnapshot(vertex=vertex, subtask=0, operators=[], in_flight=in_flight)
            for vertex, in_flight in ((UP, self.outputs), (DOWN, self.inputs))
        ]
        return Manifest(
            format_version=FORMAT_VERSION,
            pipeline="p",
            run_id=RunId("run-1"),
            attempt=Attempt(1),
            checkpoint_id=CheckpointId(1),
            kind=CheckpointKind.CHECKPOINT,
            trigger_ms=0,
            completed_ms=0,
            parallelism=self.run_parallelism or self.parallelism,
            parallelisms={} if self.run_parallelism is None else {DOWN: self.parallelism},
            max_parallelism=MAX_PARALLELISM,
            ancestors=[],
            operator_ids={},
            subtasks=snapshots,
        )


def numbers_of(batch: pa.RecordBatch) -> list[int]:
    numbers: list[int] = batch.column("at").cast(pa.int64()).to_pylist()
    return numbers
