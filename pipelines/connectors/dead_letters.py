"""Dead letters: records that a source cannot decode, as rows that say where each one lies.

A source that keeps dead letters gives them to the engine as ordinary records: at their offset, with
null in each declared column and the letter in a column of its own. So positions, replays and
checkpoints treat them like all other records, in every mode. The operator behind the source takes
the column off and passes the letters to a side output. They take no part in event time.

This module does not decide where dead letters go: the author reads the side output.

Source: Kafka Connect's dead letter queue; Flink's side outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected

COLUMN = "ftdash_dead_letter"
"""The column of a source that holds the letter; null for a record that was decoded."""

DEAD_LETTERS = "dead_letters"
"""The name of the side output, and of the counter."""

LETTER = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("error", pa.string()),
    ]
)
"""The columns of the side output. Key and value are unchanged; `at` is the time kept by Kafka."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One record, with the sentence that says why it cannot be decoded."""

    topic: str
    partition: int
    offset: int
    at_ms: int | None
    key: bytes | None
    value: bytes | None
    error: str


@runtime_checkable
class KeepsDeadLetters(Protocol):
    """A source that can continue after a record that it cannot decode.

    Its schema then ends with `COLUMN`.
    """

    @property
    def dead_letters(self) -> bool: ...


def with_column(schema: pa.Schema) -> pa.Schema:
    """Appends `COLUMN` to the schema. Raises Rejected if the name is taken."""
    if COLUMN in schema.names:
        raise Rejected(f"The column {COLUMN} holds the dead letters of a source; rename yours.")
    return schema.append(pa.field(COLUMN, pa.binary()))


def with_letters(
    decoded: pa.RecordBatch, letters: Mapping[int, DeadLetter], row_count: int
) -> pa.RecordBatch:
    """Puts each letter at its row; the decoded records fill the other rows in order."""
    schema = with_column(decoded.schema)
    if not letters:
        return pa.RecordBatch.from_arrays(
            [*decoded.columns, pa.nulls(row_count, pa.binary())], schema=schema
        )
    is_letter = np.zeros(row_count, np.bool_)
    is_letter[list(letters)] = True
    places = pa.array(np.cumsum(~is_letter) - 1, mask=is_letter)
    packed = [
        msgspec.msgpack.encode(letters[row]) if row in letters else None for row in range(row_count)
    ]
    columns = [column.take(places) for column in decoded.columns]
    return pa.RecordBatch.from_arrays([*columns, pa.array(packed, pa.binary())], schema=schema)


def letters_of(packed: Sequence[bytes]) -> pa.RecordBatch:
    """Unpacks letters into rows of `LETTER`."""
    letters = [msgspec.msgpack.decode(each, type=DeadLetter) for each in packed]
    columns = [
        pa.array([getattr(each, name) for each in letters], column.type)
        for name, column in zip(DeadLetter.__struct_fields__, LETTER, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LETTER)
