"""Turns rows into text for people. Nothing stored is ever executed."""

import pyarrow as pa

from pipelines.domain.point_contents import Value

VALUE_LENGTH_MAX = 200


def shown_rows(batch: pa.RecordBatch | pa.Table) -> list[list[Value]]:
    columns = [texts_of(column) for column in batch.columns]
    return [[value_of(column[row]) for column in columns] for row in range(batch.num_rows)]


def texts_of(column: pa.Array) -> list[str | None]:
    """Binary as hexadecimal digits; the rest as Arrow writes it, or else as Python does."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return [None if value is None else str(value) for value in column.to_pylist()]
    return texts


def value_of(text: str | None) -> Value:
    return Value(None, 0) if text is None else Value(text[:VALUE_LENGTH_MAX], len(text))
