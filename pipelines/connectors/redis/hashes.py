"""Sink: a Redis hash per key, holding absolute values, visible when the checkpoint completes.

Two-phase: rows are staged on the server in lists that no reader looks at, and a script moves a list
into place once its checkpoint has completed. Only absolute values can be written. Commands that add
to a key (INCR, LPUSH, XADD) could not be repeated without harm, so the sink does not offer them.
The steps on the server are in `redis.hash_store`.

With a changelog, the sink deletes the hash of a key when its row is taken back. The index keeps the
key, so that an older transaction that is committed later does not bring the hash back.

Batches become rows of text column by column. A key consists of the values of the key columns,
joined by colons. Colons and percent signs within a value are escaped, so that no two keys collide.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.json_rows import text_of
from pipelines.connectors.redis.connection import client_of, database_of
from pipelines.connectors.redis.hash_store import CHUNK_ROWS_MAX, RedisHashStore
from pipelines.connectors.sink import (
    SinkContext,
    Superseded,
    Unfinished,
    last_changes,
    newest_of,
    without_kind,
)
from pipelines.connectors.sink_bases import (
    PreparedTransaction,
    TransactionLost,
    TwoPhaseCommitWriter,
)
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.snapshots import Json

CHUNK_BYTES = 1024 * 1024
"""About how much is applied at once; meanwhile the server does nothing else."""

Chunk = bytes
"""MessagePack of [field names, row keys, columns of values]; null: the field is absent.

A chunk of deletions has no rows; its fourth part holds the keys of the rows that are gone.
"""


def check_rows(schema: pa.Schema, keys: Sequence[str]) -> None:
    """Raises Rejected naming a column that a hash cannot hold, or a key that is no column."""
    if not keys:
        raise Rejected("Hashes in Redis need key columns to be written again without harm.")
    missing = next((key for key in keys if key not in schema.names), None)
    if missing is not None:
        raise Rejected(f"The key column {missing} of the Redis hashes is not in the results.")
    for column in schema:
        if not any(is_one(column.type) for is_one in _FIELDS):
            raise Rejected(
                f"Column {column.name} of type {column.type} cannot be a field of a Redis hash."
            )
    unfit = next((key for key in keys if not _may_be_key(schema.field(key).type)), None)
    if unfit is not None:
        raise Rejected(
            f"Key column {unfit} of type {schema.field(unfit).type} cannot name a Redis hash; use"
            " text, whole numbers, dates or times."
        )


def chunks_of(batches: Sequence[pa.RecordBatch], keys: Sequence[str]) -> Iterator[Chunk]:
    """Encodes the rows as chunks. Raises Rejected if a key is null."""
    table = pa.Table.from_batches(batches).combine_chunks()
    if not table.num_rows:
        return
    names = table.schema.names
    texts = {name: text_of(table.column(name)) for name in table.schema.names}
    row_keys = _row_keys([(key, texts[key]) for key in keys])
    step = _rows_per_chunk(table)
    for start in range(0, table.num_rows, step):
        columns = [text.slice(start, step).to_pylist() for text in texts.values()]
        yield msgspec.msgpack.encode([names, row_keys.slice(start, step).to_pylist(), columns])


def change_chunks_of(batches: Sequence[pa.RecordBatch], keys: Sequence[str]) -> Iterator[Chunk]:
    """Encodes the last change of each key of a changelog. Raises Rejected if a key is null."""
    last = last_changes(batches, keys)
    yield from chunks_of(last.kept.to_batches(), keys) if last.kept.num_rows else ()
    if last.gone.num_rows:
        gone = _row_keys([(key, text_of(last.gone.column(key))) for key in keys])
        for start in range(0, len(gone), CHUNK_ROWS_MAX):
            parts = [[], [], [], gone.slice(start, CHUNK_ROWS_MAX).to_pylist()]
            yield msgspec.msgpack.encode(parts)


def _rows_per_chunk(table: pa.Table) -> int:
    fitting: int = table.num_rows * CHUNK_BYTES // max(table.nbytes, 1)
    return max(1, min(CHUNK_ROWS_MAX, fitting))


def _row_keys(columns: Sequence[tuple[str, pa.ChunkedArray]]) -> pa.ChunkedArray:
    escaped = []
    for name, text in columns:
        if text.null_count:
            raise Rejected(f"Key column {name} of the Redis hashes is null.")
        percent = pc.replace_substring(text, "%", "%25")
        escaped.append(pc.replace_substring(percent, ":", "%3A"))
    return pc.binary_join_element_wise(*escaped, pa.scalar(":", escaped[0].type))


def _may_be_key(type_: pa.DataType) -> bool:
    return any(is_one(type_) for is_one in _KEYS)


_KEYS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)
_FIELDS = (  # no binary: the server's MessagePack knows text only
    *_KEYS,
    pa.types.is_null,
    pa.types.is_floating,
    pa.types.is_decimal,
)


ToChunks = Callable[[Sequence[pa.RecordBatch]], Iterator[Chunk]]

BUFFER_ROWS = 2_000
STEPS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class RedisHashes:
    """One hash for each key, with the newest row of completed checkpoints.

    Args:
        url: the address, `redis://...` or `rediss://...`. It is a secret.
        prefix: the beginning of all keys that it writes. It belongs to the pipeline alone.
        keys: the columns that make the key of a hash.
        pipeline: the name of the pipeline. The target belongs to it alone.
        buffer_rows: how many rows are sent at once.

    Building the pipeline raises Rejected for a column that does not fit. A start raises it if the
    server may evict keys.
    """

    url: str = field(repr=False)
    prefix: str
    keys: tuple[str, ...]
    _: KW_ONLY
    pipeline: str
    buffer_rows: int = BUFFER_ROWS
    applies_changes: bool = field(default=False, repr=False)  # set for a changelog, not by authors

    def applying_changes(self) -> "RedisHashes":
        """See `AppliesChanges`."""
        return replace(self, applies_changes=True)

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    @property
    def place(self) -> str:
        """See `OwnsPlace`: if two sinks wrote a row, a rewind could keep the fields of only one."""
        with closing(client_of(self.url)) as client:
            return f"the prefix {self.prefix} of the Redis server {database_of(client)}"

    def check_columns(self, schema: pa.Schema) -> None:
        """See `ChecksColumns`."""
        check_rows(without_kind(schema) if self.applies_changes else schema, self.keys)

    def validate(self, schema: pa.Schema) -> None:
        self.check_columns(schema)
        with closing(self._store()) as store:
            try:
                store.check(self.pipeline)
            except Retryable as error:
                raise Rejected(f"{error}.") from error

    def open(self, context: SinkContext, schema: pa.Schema) -> "StagingWriter":
        store = self._store()
        store.enter(context, self.pipeline)
        to_chunks = partial(change_chunks_of if self.applies_changes else chunks_of, keys=self.keys)
        target = RedisTransactions(store, context, self.prefix, to_chunks, self.buffer_rows)
        return StagingWriter(target, context, schema)

    @property
    def target(self) -> str:
        """See `HoldsTarget`."""
        with closing(self._store()) as store:
            return store.description

    def holder(self) -> Holder | None:
        with closing(self._store()) as store:
            return store.holder()

    def hold(self, claim: Claim) -> None:
        with closing(self._store()) as store:
            store.hold(claim, self.pipeline)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        with closing(self._store()) as store:
            try:
                items = store.rewind(newest_of(ancestors), run_id, self.pipeline)
            except TransactionLost as loss:
                raise Rejected(
                    f"The output of run {run_id} under {self.prefix} is gone: {loss}; restore a"
                    " point into a new run to write it again from there."
                ) from loss
        return Superseded(items, f"keys {{{self.prefix}}}:own:aside:*") if items else None

    def unfinished(self) -> list[Unfinished]:
        """See `LeavesUnfinished`."""
        with closing(self._store()) as store:
            return store.unfinished()

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        with closing(self._store()) as store:
            return store.discard_staged(names, run_id)

    def _store(self) -> RedisHashStore:
        return RedisHashStore(self.url, self.prefix)


class Handle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prepared transaction under `prefix`.

    A point may be restored into a pipeline that writes under another prefix. The transaction is
    then left to a run that restores the point under this one.
    """

    prefix: str
    transaction: str
    run_id: RunId
    uid: Uid
    subtask: int
    checkpoint_id: CheckpointId
    chunks: int


class StagingWriter(TwoPhaseCommitWriter):
    """Gives the ledger the name under which a transaction is staged."""

    def token(self, committable: Json) -> str:
        prepared = msgspec.convert(committable, PreparedTransaction)
        return msgspec.convert(prepared.handle, Handle).transaction


class RedisTransactions:
    """Guarantee: a visible row is that of the newest committed transaction that wrote its key.

    A fenced writer changes nothing.
    """

    def __init__(
        self,
        store: RedisHashStore,
        context: SinkContext,
        prefix: str,
        to_chunks: ToChunks,
        buffer_rows: int,
    ) -> None:
        self._store = store
        self._context = context
        self._prefix = prefix
        self._to_chunks = to_chunks
        self._buffer_rows = buffer_rows
        self._numbers = itertools.count()

    def begin(
        self, context: SinkContext, schema: pa.Schema, after: CheckpointId
    ) -> "RedisTransaction":
        writer = f"{context.run_id}:{context.attempt}:{context.uid}:{context.subtask}"
        name = f"{writer}:{next(self._numbers)}"
        return RedisTransaction(
            self._store, context, self._prefix, name, self._to_chunks, self._buffer_rows
        )

    def commit(self, handle: Json) -> None:
        """An interrupted commit continues at the chunk where it stopped."""
        prepared = msgspec.convert(handle, Handle)
        if prepared.prefix != self._prefix:
            return
        writer = f"{prepared.run_id}:{prepared.uid}:{prepared.subtask}"
        step = (prepared.transaction, prepared.run_id, writer, prepared.checkpoint_id)
        for start in range(0, prepared.chunks, STEPS_AT_ONCE):
            count = min(STEPS_AT_ONCE, prepared.chunks - start)
            self._store.apply(self._context, itertools.repeat(step, count))

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        """Keeps restored transactions: they are prepared for the starting point or before it."""
        self._store.sweep(context)

    def close(self) -> None:
        self._store.close()


class RedisTransaction:
    """Rows of one interval: some are buffered here, the rest is staged under `name`."""

    def __init__(
        self,
        store: RedisHashStore,
        context: SinkContext,
        prefix: str,
        name: str,
        to_chunks: ToChunks,
        buffer_rows: int,
    ) -> None:
        self._store = store
        self._context = context
        self._prefix = prefix
        self._name = name
        self._to_chunks = to_chunks
        self._buffer_rows = buffer_rows
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._buffer.append(batch)
        self._buffered_rows += batch.num_rows
        if self._buffered_rows >= self._buffer_rows:
            self._flush()

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        self._flush()
        context = self._context
        handle: Json = msgspec.to_builtins(
            Handle(
                prefix=self._prefix,
                transaction=self._name,
                run_id=context.run_id,
                uid=context.uid,
                subtask=context.subtask,
                checkpoint_id=checkpoint_id,
                chunks=self._store.prepare(context, self._name, checkpoint_id),
            )
        )
        return handle

    def abandon(self) -> None:
        """The next rewind drops what is staged."""
        self._buffer = []

    def _flush(self) -> None:
        for chunk in self._to_chunks(self._buffer) if self._buffer else ():
            self._store.stage(self._context, self._name, chunk)
        self._buffer, self._buffered_rows = [], 0
