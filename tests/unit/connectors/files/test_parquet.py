"""The Parquet source: rules beyond the contract suite of all sources."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.connectors.files.input_files import write_listing
from pipelines.connectors.files.parquet import YEAR_MS, ParquetFiles
from pipelines.connectors.source import MalformedRecord
from pipelines.connectors.watermark_strategy import EVENT_TIME
from pipelines.domain.errors import Rejected

SCHEMA = pa.schema([("id", pa.int64()), ("at", EVENT_TIME)])


def test_row_groups_before_the_offset_are_not_read(tmp_path: Path) -> None:
    file = write(tmp_path, rows(40), row_group_size=10)
    damage_row_groups(file, 0, 1, 2)
    source = ParquetFiles([file], schema=SCHEMA)

    read = pa.Table.from_batches(source.read(0, 33))

    assert read["id"].to_pylist() == list(range(33, 40))


def test_a_file_is_not_read_into_memory_as_a_whole(tmp_path: Path) -> None:
    rows, groups = 20_000, 16
    numbers = np.random.default_rng(1).integers(0, 1 << 60, rows * groups)
    table = pa.table({"number": numbers})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows, use_dictionary=False)
    source = ParquetFiles(tmp_path, schema=table.schema, batch_rows=rows)
    before = pa.total_allocated_bytes()

    held = [pa.total_allocated_bytes() - before for _ in source.read(0, 0)]

    assert len(held) == groups
    assert max(held) < table.nbytes / 3


def test_batches_are_bounded(tmp_path: Path) -> None:
    source = ParquetFiles([write(tmp_path, rows(25))], schema=SCHEMA, batch_rows=10)

    assert [batch.num_rows for batch in source.read(0, 0)] == [10, 10, 5]


def test_each_cycle_shifts_every_timestamp_by_a_year(tmp_path: Path) -> None:
    file = write(tmp_path, rows(3))
    source = ParquetFiles([file], schema=SCHEMA, timestamp_column="at", forever=True)

    [batch] = source.read(2, 0)

    assert batch["at"].cast(pa.int64()).to_pylist() == [2 * YEAR_MS + i for i in range(3)]
    assert source.event_time_ms(2, 1) == 2 * YEAR_MS + 1
    assert source.split_id(2) == "a.parquet (cycle 2)"


def test_a_column_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    file = write(tmp_path, rows(3).set_column(0, "id", pa.array(["x", "y", "z"])))
    source = ParquetFiles([file], schema=SCHEMA)

    with pytest.raises(Rejected) as refused:
        source.validate()

    assert str(refused.value) == f"Column id of the input file {file} is string, not int64."


def test_records_without_event_time_are_reported_by_offset_others_are_read(
    tmp_path: Path,
) -> None:
    times = pa.array([1, 2, None, 4, None, 6], EVENT_TIME)
    file = write(tmp_path, rows(6).set_column(1, "at", times), row_group_size=4)
    source = ParquetFiles([file], schema=SCHEMA, timestamp_column="at", batch_rows=2)

    read, bad, said, offset = [], {}, [], 0
    while True:
        try:
            for batch in source.read(0, offset):
                read += batch.column("id").to_pylist()
            break
        except MalformedRecord as error:
            bad[error.offset] = error.text
            said.append(str(error))
            offset = error.offset + 1

    assert said[0] == f"Record 3 of the input file {file} has no at: no event time."
    assert bad == {2: '{"id":2,"at":null}', 4: '{"id":4,"at":null}'}
    assert read == [0, 1, 3, 5]
    assert [source.event_time_ms(0, offset) for offset in range(6)] == [1, 2, 4, 4, 6, 6]


@pytest.mark.parametrize("column", ["when", "id"])
def test_event_time_needs_a_column_of_its_type(tmp_path: Path, column: str) -> None:
    with pytest.raises(Rejected, match=f"event time column {column} must be"):
        ParquetFiles([write(tmp_path, rows(3))], schema=SCHEMA, timestamp_column=column)


def test_a_directory_is_read_in_name_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", ".c.parquet", "_d.parquet", "e.txt"):
        write(tmp_path, rows(1), name=name)

    source = ParquetFiles(tmp_path, schema=SCHEMA)

    assert [source.split_id(index) for index in range(3)] == ["a.parquet", "b.parquet", None]


def test_a_listing_reports_a_missing_file_and_keeps_the_places_of_the_others(
    tmp_path: Path,
) -> None:
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        write(tmp_path, rows(1), name=name)
    write_listing(tmp_path)
    (tmp_path / "a.parquet").unlink()
    write(tmp_path, rows(1), name="d.parquet")

    source = ParquetFiles(tmp_path, schema=SCHEMA)

    assert [source.split_id(index) for index in range(4)] == [
        "a.parquet",
        "b.parquet",
        "c.parquet",
        None,
    ]
    with pytest.raises(Rejected, match=r"a\.parquet is missing"):
        source.validate()


def test_a_malformed_listing_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "_files.json").write_text("[1]")

    with pytest.raises(Rejected, match=r"The listing .*_files\.json is malformed"):
        ParquetFiles(tmp_path, schema=SCHEMA)


def test_an_input_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"There are no \.parquet files"):
        ParquetFiles(tmp_path, schema=SCHEMA)
    with pytest.raises(Rejected, match="does not exist"):
        ParquetFiles(tmp_path / "nowhere", schema=SCHEMA)


def rows(count: int) -> pa.Table:
    ids = range(count)
    return pa.table([pa.array(ids, pa.int64()), pa.array(ids, EVENT_TIME)], schema=SCHEMA)


def write(
    directory: Path, table: pa.Table, *, name: str = "a.parquet", row_group_size: int = 1000
) -> Path:
    file = directory / name
    pq.write_table(table, file, row_group_size=row_group_size)
    return file


def damage_row_groups(file: Path, *groups: int) -> None:
    metadata = pq.read_metadata(file)
    content = bytearray(file.read_bytes())
    for group in groups:
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            content[start : start + chunk.total_compressed_size] = bytes(
                chunk.total_compressed_size
            )
    file.write_bytes(content)
