"""Audits hashes in Redis by the index beside them, which names the last writer of each.

Uses a plain client, no scripts. Reads index and hash in one step of the server, so a run may go on
meanwhile. A hash that only the index has is a difference, and so is one that the index does not
have. All others are judged like upserted rows: see `TaggedRows`.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa
import redis

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.report import Covers, Difference, Rows
from pipelines.audit.table_output import TaggedRows, Tags
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.state.row_digest import digest_of

_ROWS = 1_000
_RUN_STEP = 2**32  # the distance between two runs in a score
_ANSWER_S = 30.0


class RedisOutput:
    """`schema` is that of the rows that the sink takes. Reads all hashes when constructed."""

    def __init__(self, url: str, prefix: str, schema: pa.Schema) -> None:
        """Raises Rejected when the server does not answer."""
        self._schema = schema
        self._index = f"{{{prefix}}}:own:index"
        self._runs = f"{{{prefix}}}:own:runs"
        self._row = f"{{{prefix}}}:row:"
        self._rows = TaggedRows(f"What is under {prefix}", prefix, Tags.OF_NEWEST)
        self._gone: dict[Cut, str] = {}
        self._unknown_key: str | None = None
        try:
            with closing(redis.Redis.from_url(url, socket_timeout=_ANSWER_S)) as client:
                self._read(client)
        except (redis.RedisError, ValueError):  # their texts may hold the address
            raise Rejected(
                f"The Redis hashes under {prefix} cannot be read for the audit: the server does"
                " not answer, or refuses."
            ) from None

    def stray(self, history: History, sink: Uid) -> Difference | None:
        if self._unknown_key is not None:
            what = f"{self._unknown_key} was written by no checkpoint."
            return Difference(what, part=self._unknown_key)
        return self._rows.stray(history, sink)

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        for cut in point.given_to(sink):
            if cut in self._gone:
                what = f"{self._gone[cut]}, which the checkpoint wrote, is gone, or no hash."
                return Difference(what, cut, part=self._gone[cut])
        return self._rows.judge(point, sink)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        return None

    def _read(self, client: Any) -> None:
        """1. Take every row of the index with its hash. 2. Take hashes that the index lacks."""
        numbers = {int(n): RunId(run.decode()) for run, n in client.hgetall(self._runs).items()}
        seen: set[bytes] = set()  # a scan may return a row twice
        entries = (key for key, _ in client.zscan_iter(self._index, count=_ROWS))
        for keys in _chunks(entries):
            new = list(dict.fromkeys(key for key in keys if key not in seen))
            seen.update(new)
            self._take(client, new, numbers)
        prefix = self._row.encode()
        found = client.scan_iter(match=f"{self._row}*", count=_ROWS)
        for keys in _chunks(key.removeprefix(prefix) for key in found):
            self._take(client, [key for key in keys if key not in seen], numbers)

    def _take(self, client: Any, keys: Sequence[bytes], numbers: dict[int, RunId]) -> None:
        if not keys:
            return
        step = client.pipeline(transaction=True)
        step.zmscore(self._index, keys)
        for key in keys:
            step.hgetall(self._row.encode() + key)
        scores, *hashes = step.execute(raise_on_error=False)
        if isinstance(scores, Exception):
            raise scores
        by_cut: dict[Cut, list[dict[bytes, bytes]]] = {}
        for key, score, fields in zip(keys, scores, hashes, strict=True):
            name = self._row + key.decode()
            if score is None:  # without fields: a rewind has set it aside meanwhile
                self._unknown_key = self._unknown_key or (name if fields else None)
                continue
            cut = _cut(int(score), numbers)
            if fields and not isinstance(fields, redis.ResponseError):
                by_cut.setdefault(cut, []).append(fields)
            else:
                self._gone.setdefault(cut, name)
        for cut, rows in by_cut.items():
            self._rows.add(cut, self._digested(rows))

    def _digested(self, rows: Sequence[dict[bytes, bytes]]) -> Rows:
        """Rows with an unknown field, or a value that does not fit its type, were never given."""
        names = {name.encode() for name in self._schema.names}
        if any(not names.issuperset(row) for row in rows):
            return Rows(len(rows), 0)
        try:
            columns = [_column([row.get(f.name.encode()) for row in rows], f) for f in self._schema]
        except (pa.ArrowException, ValueError):
            return Rows(len(rows), 0)
        return Rows(len(rows), digest_of(pa.RecordBatch.from_arrays(columns, schema=self._schema)))


def _cut(score: int, numbers: dict[int, RunId]) -> Cut:
    """A number without a name belongs to an unknown run."""
    number, checkpoint_id = divmod(score, _RUN_STEP)
    return Cut(numbers.get(number, RunId(f"number {number}")), CheckpointId(checkpoint_id))


def _column(values: Sequence[bytes | None], field: pa.Field) -> pa.Array:
    texts = [None if value is None else value.decode() for value in values]
    return pa.array(texts, pa.string()).cast(field.type)


def _chunks(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    while chunk := list(islice(keys, _ROWS)):
        yield chunk
