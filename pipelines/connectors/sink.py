"""The contract of a sink: write, prepare at the barrier, commit when the checkpoint completes.

Committables are plain JSON or a `Segment`, are kept in the checkpoint, and may be committed again
after a recovery: `commit` is idempotent. A sink whose writes are idempotent prepares nothing: it
flushes in `prepare`, and its output is exact once the checkpoint after a replay has completed. All
sinks derive the output that belongs to a starting point from its lineage.

`sink_bases` has what such sinks have in common, for targets that can hold a prepared transaction,
and for those that cannot. `last_changes` reads a changelog for a sink with one row per key. Of
all changes of a key the last one counts: the row that it adds is there, or, if it takes a row
back, no row is. That is right if one subtask writes all changes of a key, in the order in which
they were made; `stream.environment` sees to it.

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
"""Of a commit token in the ledger, which the journal keeps for ever."""

LOOPBACK = ("", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Who writes: everything that makes a name unique and a writer fenceable."""

    run_id: RunId
    attempt: Attempt
    uid: Uid
    subtask: int
    parallelism: int

    def inherits(self, old_subtask: int) -> bool:
        """Whether what a subtask of an earlier attempt left behind is dealt to this one."""
        return old_subtask % self.parallelism == self.subtask


@dataclass(frozen=True, slots=True)
class Segment:
    """Records of one interval, to be published whole when their checkpoint completes.

    A snapshot keeps them as a file with length and digest. `batches` holds at least one, may be
    read more than once, and raises CorruptSnapshot when the file is not what was written.
    """

    marker: Json  # which segment this is, for ever; the sink's own
    rows: int
    batches: Iterable[pa.RecordBatch]


class PrepareRefused(Exception):
    """What was written cannot be prepared for now, and nothing has changed: it stays with the
    writer for the next checkpoint, and this one is declined. Says why in a sentence."""


class SinkWriter(Protocol):
    """One subtask's writer in one attempt; used by that subtask's thread only."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises Retryable (the world) or ProtocolError (this attempt has been fenced)."""
        ...

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        """Make everything written since the last call durable but not yet visible.

        What is returned is kept in the snapshot; of a `Segment`, the records are. Raises
        PrepareRefused, or like `write`.
        """
        ...

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        """Make visible, exactly once however often it is called.

        Raises OutputLost when a committable is provably lost, which ends the run; never passes
        over it.
        """
        ...

    def close(self) -> None:
        """Give back what is open. What was written but not prepared is dropped."""
        ...


@runtime_checkable
class NamesOutput(Protocol):
    """A writer that says under which name a committable becomes visible, for the ledger."""

    def token(self, committable: Json) -> str: ...


def token_of(writer: SinkWriter, committable: Json) -> str:
    """By what an auditor finds the output again; a writer that does not say is told apart by what
    it prepared, shortened to a digest where that is long."""
    if isinstance(writer, NamesOutput):
        return writer.token(committable)
    named = committable.marker if isinstance(committable, Segment) else committable
    text = msgspec.json.encode(named)
    if len(text) <= TOKEN_BYTES_MAX:
        return text.decode()
    return f"blake2b:{hashlib.blake2b(text, digest_size=16).hexdigest()}"


def host_of(name: str) -> str:
    """One text for the names of this machine, for `OwnsPlace.place`; no name is resolved."""
    return "localhost" if name.lower() in LOOPBACK else name.lower()


@dataclass(frozen=True, slots=True)
class Superseded:
    """What `Sink.rewind` set aside."""

    items: int
    moved_to: str


@runtime_checkable
class OwnsPlace(Protocol):
    """A sink that needs its place to itself: two of one pipeline in one place would lose output.

    A sink without it may share its place. Its names and markers then hold the uid, and a rewind
    treats the output of both alike; `tests/contracts/test_sink.py` shows it.
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
        """The same sink for a changelog: a row that is added overwrites the row of its key, and one
        that is taken back deletes it. The column `row_kind` is not written."""
        ...


def for_changes(sink: "Sink") -> "Sink":
    """The sink for a changelog. Raises Rejected for one that would keep rows which are taken
    back."""
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

    `ordered_by`: changes that are equal in these columns have an order; None: no changes have.
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
        """Raises Rejected for a column that does not fit. Contacts nothing: the driver, each slot
        and each preflight build the pipeline."""
        ...


class Sink(Protocol):
    """Immutable description; safe to build in every process."""

    @property
    def guarantee(self) -> str:
        """`exactly-once` (two-phase), `exactly-once (idempotent)` or weaker; shown as written."""
        ...

    def validate(self, schema: pa.Schema) -> None:
        """Raises Rejected before anything starts: a column or a target that does not fit. May ask
        the target: only a driver and the control plane call it, before a run, and no slot does."""
        ...

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        """Fences older attempts of the same run and removes their unprepared leftovers."""
        ...

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Before an attempt writes: make the target hold the output of its starting point only.

        `ancestors` is the lineage of the starting point: for each run, output prepared up to that
        checkpoint belongs to it; a recovery within the run ends it with the run itself. Anything
        else in the target is superseded and set aside; what an earlier rewind set aside and
        belongs here comes back. Empty: a fresh start, all earlier output is superseded. Called by
        the driver while no subtask of the run writes. Idempotent. Raises TargetTaken when another
        run holds the target.
        """
        ...


@runtime_checkable
class TakesNothingBack(Protocol):
    """A sink whose target keeps what was published: a start from an older point publishes it again,
    and `rewind` sets nothing aside."""

    @property
    def published_to(self) -> str:
        """Where readers see it; for a person to read."""
        ...


@runtime_checkable
class HoldsTarget(Protocol):
    """A sink whose target keeps which run holds it; all others are refused (`domain.ownership`).

    Writers raise TargetTaken when another run holds the target, and ProtocolError when a newer
    attempt of their own run does.
    """

    @property
    def target(self) -> str:
        """Its name in messages; without a secret."""
        ...

    def holder(self) -> Holder | None:
        """Touches nothing. None: no run has come yet. Raises Retryable, Rejected."""
        ...

    def hold(self, claim: Claim) -> None:
        """In one step: compare the holder with the one that the claim follows, and replace it.

        Called by the driver before `rewind`, at every start; harmless when the run holds the
        target already. Raises TargetTaken, Retryable, Rejected.
        """
        ...


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Output that waits in a target where no reader sees it: open, staged or prepared."""

    name: str
    """As the committable that commits it names it, so that a point that needs it can be found."""

    run_id: RunId
    what: str
    """In words, in the plural: `prepared transactions`."""

    checkpoint_id: CheckpointId | None = None  # that it was prepared for; None: not known, or none
    size_bytes: int | None = None  # None: the target does not say
    is_ended_by_writers: bool = False
    """It holds readers up, so the writers of the run that holds the target end it in any case."""


@runtime_checkable
class LeavesUnfinished(Protocol):
    """A sink whose target keeps unfinished output after its writers have died."""

    def unfinished(self) -> list[Unfinished]:
        """Of all runs that wrote to the target for this pipeline. Touches nothing.

        What only looks like ours, by its name, is not listed. Raises Retryable, Rejected.
        """
        ...

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        """End what `unfinished` has listed under these names; how many were still there.

        Called by the driver of `run_id` while no subtask of the run writes. Idempotent. Raises
        TargetTaken when another run holds the target, Retryable, Rejected.
        """
        ...


Lineage = Sequence[tuple[RunId, CheckpointId]]
"""The points from which a starting point descends, oldest first, itself last."""


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
    """`batches`, at least one, have the column of the row kind."""
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
