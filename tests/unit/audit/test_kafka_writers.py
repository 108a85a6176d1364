"""Which producer committed which records of a log, and the rows of these records."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from pipelines.audit.kafka_output import End, KafkaWriters, LogBatch, RecordRows
from pipelines.audit.report import Rows
from pipelines.state.row_digest import digest_of

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ONE, OTHER = 7, 8


def test_interleaved_transactions_are_distinguished_by_producer() -> None:
    writers = KafkaWriters(RecordRows(SCHEMA, None, None))
    for batch in (
        batch_of(ONE, {0: 1}),
        batch_of(OTHER, {1: 2}),
        batch_of(ONE, {2: 3}),
        end_of(OTHER, End.COMMITTED),
        batch_of(ONE, {0: 4}, partition=1),
        end_of(ONE, End.COMMITTED),
        end_of(ONE, End.COMMITTED, partition=1),
    ):
        writers.on_batch(batch)

    assert writers.rows_of(ONE) == rows_of(1, 3, 4)
    assert writers.rows_of(OTHER) == rows_of(2)
    assert [(e.partition, e.first, e.last) for e in writers.committed[ONE]] == [
        (0, 0, 2),
        (1, 0, 0),
    ]


def test_aborted_and_open_transactions_count_for_nothing() -> None:
    writers = KafkaWriters(RecordRows(SCHEMA, None, None))
    for batch in (
        batch_of(ONE, {0: 1}),
        end_of(ONE, End.ABORTED),
        batch_of(ONE, {2: 2}),
        end_of(ONE, End.COMMITTED),
        batch_of(OTHER, {4: 3}),
    ):
        writers.on_batch(batch)

    assert writers.rows_of(ONE) == rows_of(2)
    assert writers.rows_of(OTHER) == Rows(0, 0)
    assert (writers.is_open(ONE), writers.is_open(OTHER)) == (False, True)


def test_records_without_a_transaction_count_at_once() -> None:
    writers = KafkaWriters(RecordRows(SCHEMA, None, None))

    writers.on_batch(replace(batch_of(-1, {0: 1}), is_transactional=False))

    assert writers.rows_of(-1) == rows_of(1)


@pytest.mark.parametrize("value", [b"no JSON", b"[1]", b'{"id":1}', b'{"id":"x","name":"n"}', None])
def test_a_record_that_is_no_row_has_a_digest_of_zero(value: bytes | None) -> None:
    found = RecordRows(SCHEMA, None, None).of([(0, None, value)])

    assert found == Rows(1, 0)


def test_a_record_is_digested_if_its_value_and_key_hold_all_columns() -> None:
    record = (0, b"5", b"name 5")

    whole = RecordRows(SCHEMA, "name", "id").of([record])
    part = RecordRows(SCHEMA, "name", None).of([record])

    assert whole == rows_of(5)
    assert part == Rows(1, None)


def batch_of(producer_id: int, ids: dict[int, int], *, partition: int = 0) -> LogBatch:
    """`ids` maps offsets to ids."""
    records = [(offset, None, json.dumps(row(i)).encode()) for offset, i in ids.items()]
    return LogBatch(
        partition, producer_id, is_transactional=True, records=records, end=None, at_ms=0
    )


def end_of(producer_id: int, end: End, *, partition: int = 0) -> LogBatch:
    return LogBatch(partition, producer_id, is_transactional=True, records=[], end=end, at_ms=0)


def rows_of(*ids: int) -> Rows:
    batch = pa.RecordBatch.from_pylist([row(i) for i in ids], schema=SCHEMA)
    return Rows(len(ids), digest_of(batch))


def row(number: int) -> dict[str, object]:
    return {"id": number, "name": f"name {number}"}
