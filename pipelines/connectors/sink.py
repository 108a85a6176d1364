"""The contract of a sink: write, prepare at the barrier, commit when the checkpoint completes.

Committables are plain JSON or a `Segment`. The checkpoint keeps them, and a recovery may commit
them again, so `commit` is idempotent. A sink whose writes are idempotent prepares nothing: it
flushes in `prepare`, and its output is exact once the checkpoint after a replay has completed. All
sinks derive the output that belongs to a starting point from its lineage.

`sink_bases` holds the code that such sinks share, for targets that can hold a prepared transaction
and for those that cannot. `last_changes` reads a changelog for a sink with one row per key. Only
the last change of a key counts: the target has the row that it adds, or no row if it takes one
back. This requires that one subtask writes all changes of a key, in the order in which they were
made; `stream.environment` ensures it.

Source: Flink's Sink V2 (`TwoPhaseCommittingStatefulSink`, `Committer`); Flink's upsert sinks, which
read `-U` as nothing and `-D` as a deletion by key.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.elements import ROW_KIND, take_back_column
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.snapshots import Json

TOKEN_BYTES_MAX = 256
"""The longest commit token in the ledger, which the journal keeps for ever."""

LOOPBACK = ("", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Identifies a writer, so that its names are unique and it can be fenced."""

    run_id: RunId
    attempt: Attempt
    uid: Uid
    subtask: int
    parallelism: int

    def inherits(self, old_subtask: int) -> bool:
        """Returns True if this subtask takes over what `old_subtask` of an earlier attempt left."""
        return old_subtask % self.parallelism == self.subtask


@dataclass(frozen=True, slots=True)
class Segment:
    """Records of one interval, to be published whole when their checkpoint completes.

    A snapshot keeps them as a file with length and digest. `batches` holds at least one batch, may
    be read more than once, and raises CorruptSnapshot if the file is not what was written.
    """

    marker: Json  # identifies the segment for ever; the sink chooses its form
    rows: int
    batches: Iterable[pa.RecordBatch]


class PrepareRefused(Exception):
    """The writer cannot prepare its records now and has changed nothing; the message says why.

    The records stay with the writer for the next checkpoint, and this checkpoint is declined.
    """


class SinkWriter(Protocol):
    """One subtask's writer in one attempt; used by that subtask's thread only."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises Retryable (the world) or ProtocolError (this attempt has been fenced)."""
        ...

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        """Make everything written since the last call durable but not yet visible.

        The snapshot keeps the returned committables, and the records of each `Segment`. Raises
        PrepareRefused, and the errors of `write`.
        """
        ...

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        """Make the committables visible exactly once, however often it is called.

        Raises OutputLost if a committable is provably lost, which ends the run; never skips it.
        """
        ...

    def close(self) -> None:
        """Release what is open. Records that were written but not prepared are dropped."""
        ...


@runtime_checkable
class NamesOutput(Protocol):
    """A writer that says under which name a committable becomes visible, for the ledger."""

    def token(self, committable: Json) -> str: ...


def token_of(writer: SinkWriter, committable: Json) -> str:
    """Returns the text by which an auditor finds the output again.

    If the writer gives no name, that is the committable, or its digest if it is long.
    """
    if isinstance(writer, NamesOutput):
        return writer.token(committable)
    named = committable.marker if isinstance(committable, Segment) else committable
    text = msgspec.json.encode(named)
    if len(text) <= TOKEN_BYTES_MAX:
        return text.decode()
    return f"blake2b:{hashlib.blake2b(text, digest_size=16).hexdigest()}"


def host_of(name: str) -> str:
    """Returns one text for all names of this machine, for `OwnsPlace.place`; resolves no name."""
    return "localhost" if name.lower() in LOOPBACK else name.lower()


@dataclass(frozen=True, slots=True)
class Superseded:
    """The output that `Sink.rewind` set aside."""

    items: int
    moved_to: str


@runtime_checkable
class OwnsPlace(Protocol):
    """A sink that needs its place to itself: two sinks of a pipeline in one place lose output.

    A sink without this property may share its place. Its names and markers then contain the uid,
    and a rewind treats the output of both alike; `tests/contracts/test_sink.py` shows it.
    """

    @property
    def place(self) -> str:
        """The same text for the same place, however an author spells it; for a person to read."""
        ...


@runtime_checkable
class Overwrites(Protocol):
    """A sink that keeps the newest row of each key."""

    @property
    def keys(self) -> tuple[str, ...]: ...


@runtime_checkable
class AppliesChanges(Overwrites, Protocol):
    """A sink that can also delete the row of a key."""

    def applying_changes(self) -> "Sink":
        """Returns the same sink for a changelog. It does not write the column `row_kind`.

        An added row overwrites the row of its key; a row that is taken back deletes it.
        """
        ...


def for_changes(sink: "Sink") -> "Sink":
    """Returns the sink for a changelog. Raises Rejected if it would keep rows taken back."""
    if isinstance(sink, AppliesChanges):
        return sink.applying_changes()
    if isinstance(sink, Overwrites):
        raise Rejected(
            "its input is a changelog, and the sink keeps the newest row of each key, so a row that"
            " is taken back would stay. Write the changelog to a sink that appends, or aggregate"
            " it by key in front of the sink"
        )
    return sink


def check_change_keys(keys: Sequence[str], ordered_by: Sequence[str] | None) -> None:
    """Raises Rejected unless one subtask makes all changes of a row with these keys, in order.

    `ordered_by`: changes that are equal in these columns have an order. None: no changes have one.
    """
    if ordered_by is None:
        raise Rejected(
            "its input is a changelog whose changes come in no order, so the sink could not tell"
            " which change of a key is the last. Leave out rebalance, broadcast and the union of"
            " different changelogs in front of it"
        )
    missing = [name for name in ordered_by if name not in keys]
    if missing:
        raise Rejected(
            f"its input is a changelog of the key ({', '.join(ordered_by)}), and the sink's keys"
            f" ({', '.join(keys)}) lack {missing[0]!r}: changes of one row of the sink would come"
            " from several subtasks, in no order. Add the column to the sink's keys"
        )


@runtime_checkable
class ChecksColumns(Protocol):
    """A sink that cannot take every column."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises Rejected for a column that does not fit.

        Contacts no other system, because the driver, each slot and each preflight build the
        pipeline.
        """
        ...


class Sink(Protocol):
    """Immutable description; safe to build in every process."""

    @property
    def guarantee(self) -> str:
        """`exactly-once` (two-phase), `exactly-once (idempotent)` or weaker; shown as written."""
        ...

    def validate(self, schema: pa.Schema) -> None:
        """Raises Rejected before anything starts if a column or the target does not fit.

        May contact the target: only a driver and the control plane call it, before a run; a slot
        never does.
        """
        ...

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        """Fences older attempts of the same run and removes their unprepared leftovers."""
        ...

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Make the target hold only the output of the starting point, before an attempt writes.

        `ancestors` is the lineage of the starting point: for each run, output prepared up to that
        checkpoint belongs to it. In a recovery within the run, the run itself comes last. All other
        output in the target is superseded and set aside. Output of the lineage that an earlier
        rewind set aside comes back. Output that a run has set aside of its own never does: the run
        fell back to an older checkpoint and wrote the same records again. Empty means a fresh
        start: all earlier output is superseded.

        The driver calls it once it has told all subtasks of the run to end. One that dies slowly
        may still try to commit, so refuse every attempt that has opened the sink so far.
        Idempotent. Raises TargetTaken if another run holds the target.
        """
        ...


@runtime_checkable
class TakesNothingBack(Protocol):
    """A sink whose target keeps all published output, so `rewind` sets nothing aside.

    A start from an older point publishes its output again.
    """

    @property
    def published_to(self) -> str:
        """Where readers find the output; for a person to read."""
        ...


@runtime_checkable
class HoldsTarget(Protocol):
    """A sink whose target records which run holds it; it refuses all others (`domain.ownership`).

    Writers raise TargetTaken if another run holds the target, and ProtocolError if a newer attempt
    of their own run does.
    """

    @property
    def target(self) -> str:
        """The target's name in messages; contains no secret."""
        ...

    def holder(self) -> Holder | None:
        """Returns the holder, or None if no run has held the target yet. Changes nothing.

        Raises Retryable, Rejected.
        """
        ...

    def hold(self, claim: Claim) -> None:
        """Compare the holder with the one that the claim follows and replace it, in one step.

        The driver calls it before `rewind`, at every start; harmless if the run holds the target
        already. Raises TargetTaken, Retryable, Rejected.
        """
        ...


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Output that waits in a target where no reader sees it: open, staged or prepared."""

    name: str
    """The name in the committable that commits it, so that a point that needs it can be found."""

    run_id: RunId
    what: str
    """The kind of output, in the plural: `prepared transactions`."""

    checkpoint_id: CheckpointId | None = None  # it was prepared for this; None: none, or unknown
    size_bytes: int | None = None  # None: the target does not say
    is_ended_by_writers: bool = False
    """It blocks readers, so the writers of the run that holds the target end it in any case."""


@runtime_checkable
class LeavesUnfinished(Protocol):
    """A sink whose target keeps unfinished output after its writers have died."""

    def unfinished(self) -> list[Unfinished]:
        """Lists the output of all runs that wrote to the target for this pipeline. Changes nothing.

        Leaves out output whose name only resembles ours. Raises Retryable, Rejected.
        """
        ...

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        """End the output that `unfinished` listed as `names`; returns how many were still there.

        The driver of `run_id` calls it while no subtask of the run writes. Idempotent. Raises
        TargetTaken if another run holds the target, Retryable, Rejected.
        """
        ...


Lineage = Sequence[tuple[RunId, CheckpointId]]
"""The points from which a starting point descends, oldest first; the point itself is last."""


def newest_of(lineage: Lineage) -> dict[RunId, int]:
    """For each run, the newest checkpoint whose output belongs to the lineage."""
    newest: dict[RunId, int] = {}
    for run_id, checkpoint_id in lineage:
        newest[run_id] = max(checkpoint_id, newest.get(run_id, 0))
    return newest


_POSITION = "__position"


@dataclass(frozen=True, slots=True)
class LastChanges:
    """`kept`: the newest row of each key that has one. `gone`: the keys that have none."""

    kept: pa.Table
    gone: pa.Table


def without_kind(schema: pa.Schema) -> pa.Schema:
    """The columns of the rows that a changelog adds and takes back."""
    return schema.remove(schema.get_field_index(ROW_KIND))


def last_changes(batches: Sequence[pa.RecordBatch], keys: Sequence[str]) -> LastChanges:
    """Finds the last change of each key in `batches`: at least one, each with the row kind."""
    changes = pa.Table.from_batches(batches)
    positions = pa.array(range(changes.num_rows), pa.int64())
    numbered = changes.select(list(keys)).append_column(_POSITION, positions)
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(_POSITION, "max")])
    newest = changes.take(last.column(f"{_POSITION}_max").combine_chunks().sort())
    is_gone = pc.is_in(newest.column(ROW_KIND), value_set=take_back_column())
    return LastChanges(
        kept=newest.filter(pc.invert(is_gone)).drop_columns([ROW_KIND]),
        gone=newest.filter(is_gone).select(list(keys)),
    )
