"""Formats of output files: what JSON lines can store, and what is refused."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files.json_lines import JsonLinesFiles
from pipelines.connectors.files.sink import JSON_LINES, DigestedFile
from pipelines.domain.errors import Rejected

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("at", pa.timestamp("ms", "Europe/Berlin")),
        ("list", pa.list_(pa.int64())),
    ]
)
NOON = dt.datetime(2013, 7, 1, 12, 0, 0, 5000, dt.UTC)
ROWS = [
    {"n": 2**62 + 1, "x": 0.1, "s": 'ü "\n\\', "at": NOON, "list": [1, 2]},
    {"n": None, "x": None, "s": None, "at": None, "list": None},
]


def test_each_row_becomes_one_json_line_with_every_column(tmp_path: Path) -> None:
    lines = written(tmp_path, pa.Table.from_pylist(ROWS, SCHEMA))

    assert [json.loads(line) for line in lines] == [
        ROWS[0] | {"at": "2013-07-01T12:00:00.005Z"},
        ROWS[1],
    ]


def test_our_own_source_reads_back_what_was_written(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    written(tmp_path, table)

    source = JsonLinesFiles([tmp_path / "out.jsonl"], schema=SCHEMA)

    assert pa.Table.from_batches(source.read(0, 0)).equals(table)


def test_values_that_json_lacks_become_text_or_null(tmp_path: Path) -> None:
    table = pa.table(
        {
            "decimal": pa.array([Decimal("1.50")]),
            "date": pa.array([dt.date(2013, 7, 1)]),
            "naive": pa.array([1], pa.timestamp("ns")),
            "nan": pa.array([float("nan")]),
        }
    )

    assert [json.loads(line) for line in written(tmp_path, table)] == [
        {
            "decimal": "1.50",
            "date": "2013-07-01",
            "naive": "1970-01-01T00:00:00.000000001",
            "nan": None,
        }
    ]


@pytest.mark.parametrize(
    "type_", [pa.duration("s"), pa.list_(pa.timestamp("ns")), pa.struct([("t", pa.time32("s"))])]
)
def test_a_column_that_json_cannot_store_is_refused_by_name(type_: pa.DataType) -> None:
    with pytest.raises(Rejected, match=r"Column odd of type .* cannot be stored as JSON lines"):
        JSON_LINES.check_storable(pa.field("odd", type_))


def test_every_column_that_is_accepted_can_be_written(tmp_path: Path) -> None:
    accepted = [
        pa.null(),
        pa.bool_(),
        pa.uint8(),
        pa.float32(),
        pa.decimal128(5, 2),
        pa.large_string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("ns", "UTC"),
        pa.large_list(pa.timestamp("us", "UTC")),
        pa.struct([("d", pa.date64())]),
    ]
    schema = pa.schema([(str(index), type_) for index, type_ in enumerate(accepted)])

    for column in schema:
        JSON_LINES.check_storable(column)

    assert len(written(tmp_path, schema.empty_table())) == 0
    assert len(written(tmp_path, pa.Table.from_pylist([{}], schema))) == 1


def written(directory: Path, table: pa.Table) -> list[str]:
    path = directory / "out.jsonl"
    path.unlink(missing_ok=True)
    file = DigestedFile(path)
    JSON_LINES.open(file, table.schema).write_table(table)
    file.close()
    return path.read_text().splitlines()
