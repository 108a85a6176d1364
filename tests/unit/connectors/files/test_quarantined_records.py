"""Records come back from a quarantine as they were, each line once."""

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files.json_lines import BLOCK_BYTES
from pipelines.connectors.files.quarantine import quarantined, quarantined_records
from pipelines.connectors.json_rows import json_lines_of, record_text
from pipelines.connectors.source import MalformedRecord
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.poison import PoisonRecord

TIME = pa.timestamp("ms", "UTC")
NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("n", pa.uint64()),
        ("x", pa.float64()),
        ("text", pa.string()),
        ("is_new", pa.bool_()),
        ("at", TIME),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("key", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("deep", pa.struct([("a", pa.int64())])),
    ]
)
ROWS = [
    {
        "n": 2**64 - 1,
        "x": 0.1,
        "text": 'a "b"\n<c>',
        "is_new": True,
        "at": NOON,
        "day": NOON.date(),
        "price": Decimal("1.25"),
        "key": b"\xff\x00",
        "tags": ["x"],
        "deep": {"a": 1},
    },
    {**dict.fromkeys(SCHEMA.names), "at": NOON},
]


def test_a_record_is_restored_exactly_for_any_column_values(tmp_path: Path) -> None:
    written = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
    put(tmp_path, [record_text(written.slice(row, 1)) for row in range(len(ROWS))])

    source = quarantined_records(tmp_path, schema=SCHEMA, timestamp_column="at")
    (split,) = source.find(set(), is_start=True)

    assert list(source.read(split)) == [written]
    assert [each.num_rows for each in source.read(SplitProgress(split.name, 1))] == [1]


def test_records_quarantined_during_a_replay_wait_for_the_next_run(tmp_path: Path) -> None:
    put(tmp_path, ["{}"])
    source = quarantined_records(tmp_path, schema=SCHEMA)
    (split,) = source.find(set(), is_start=True)

    put(tmp_path, ["{}"], name="part-run-1-00000002-0-0.jsonl")

    assert source.find({split.name}, is_start=False) == []


def test_an_unreadable_record_is_reported_without_losing_its_neighbours(
    tmp_path: Path,
) -> None:
    torn = '{"n": oops' + BLOCK_BYTES * "x"
    put(tmp_path, ['{"n": 1, "more": "' + BLOCK_BYTES * "x" + '"}', torn, '{"n": 3}'])
    source = quarantined_records(tmp_path, schema=pa.schema([("n", pa.int64())]))
    (split,) = source.find(set(), is_start=True)
    batches = source.read(split)

    assert next(batches).to_pylist() == [{"n": 1}]  # type: ignore[union-attr]
    with pytest.raises(MalformedRecord, match=r"in line 2 of .*part-run-1-0.* cannot") as refused:
        next(batches)
    assert (refused.value.offset, refused.value.text) == (1, torn)
    assert [b.to_pylist() for b in source.read(SplitProgress(split.name, 2))] == [[{"n": 3}]]  # type: ignore[union-attr]


@pytest.mark.parametrize("type_", [pa.list_(pa.binary()), pa.map_(pa.string(), pa.int8())])
def test_a_column_that_json_cannot_restore_exactly_is_refused(
    tmp_path: Path, type_: pa.DataType
) -> None:
    with pytest.raises(Rejected, match=r"Column c of type .* does not come back"):
        quarantined_records(tmp_path, schema=pa.schema([("c", type_)]))


def put(directory: Path, records: list[str], name: str = "part-run-1-00000001-0-0.jsonl") -> None:
    poison = PoisonRecord(
        source=Uid("in"),
        split="a",
        offset=1,
        operator=Uid("f"),
        error_type="ValueError",
        error="bad",
        trace="",
    )
    lines = pa.Table.from_batches([quarantined(poison, record) for record in records])
    (directory / name).write_bytes(json_lines_of(lines))
    assert all(json.loads(line)["split"] == "a" for line in (directory / name).open())
