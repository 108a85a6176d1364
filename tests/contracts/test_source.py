"""The contract of sources: in every format, a position always means the same record."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from pipelines.connectors.files.csv import CsvFiles
from pipelines.connectors.files.json_lines import JsonLinesFiles
from pipelines.connectors.files.parquet import ParquetFiles
from pipelines.connectors.source import Source
from pipelines.connectors.watermark_strategy import EVENT_TIME
from pipelines.domain.errors import Rejected

SIZES = [7, 0, 10, 1]  # records of each file
CSV_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("at", EVENT_TIME)])

Build = Callable[[Path], Source]


@pytest.fixture(params=["fake", "parquet", "parquet for ever", "csv", "csv repeated", "json lines"])
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDERS[request.param]


@pytest.fixture(params=["parquet", "parquet for ever", "csv", "csv repeated", "json lines"])
def build_on_files(request: pytest.FixtureRequest) -> Build:
    return BUILDERS[request.param]


def test_reading_from_an_offset_gives_the_rest_of_the_split(build: Build, tmp_path: Path) -> None:
    source = build(tmp_path)

    for index in splits(source):
        whole = records(source, index, 0)
        for offset in range(len(whole) + 1):
            assert records(source, index, offset) == whole[offset:]


def test_all_records_of_all_files_are_read_in_order(build: Build, tmp_path: Path) -> None:
    source = build(tmp_path)

    sizes = [len(records(source, index, 0)) for index in range(len(SIZES))]
    ids = [row["id"] for index in range(len(SIZES)) for row in records(source, index, 0)]

    assert sizes == SIZES
    assert ids == list(range(sum(SIZES)))


def test_the_sequence_of_splits_is_the_same_for_every_builder(build: Build, tmp_path: Path) -> None:
    one, other = build(tmp_path), build(tmp_path)

    assert [one.split_id(i) for i in range(20)] == [other.split_id(i) for i in range(20)]
    for index in splits(one):
        assert records(one, index, 0) == records(other, index, 0)


def test_split_names_are_distinct(build: Build, tmp_path: Path) -> None:
    names = [build(tmp_path).split_id(index) for index in splits(build(tmp_path))]

    assert len(set(names)) == len(names)


def test_batches_have_the_declared_schema(build: Build, tmp_path: Path) -> None:
    source = build(tmp_path)

    for index in splits(source):
        for batch in source.read(index, 1 if SIZES[index % len(SIZES)] else 0):
            assert batch.schema.equals(source.schema, check_metadata=True)


def test_event_time_of_a_position_is_that_of_its_record(build: Build, tmp_path: Path) -> None:
    source = build(tmp_path)

    for index in splits(source):
        rows = records(source, index, 0)
        times = [source.event_time_ms(index, offset) for offset in range(len(rows) + 1)]

        assert times == [*(time_of(source, row) for row in rows), None]


def test_there_is_no_event_time_behind_the_last_split(build: Build, tmp_path: Path) -> None:
    source = build(tmp_path)
    if source.split_id(1000) is None:
        assert source.event_time_ms(1000, 0) is None


def test_later_splits_hold_later_event_time(build: Build, tmp_path: Path) -> None:
    source = build(tmp_path)
    if source.timestamp_column is None:
        return

    rows = [row for index in splits(source) for row in records(source, index, 0)]
    times = [time_of(source, row) for row in rows]

    assert times == sorted(times)


def test_a_missing_file_is_named_with_the_lost_range(build_on_files: Build, tmp_path: Path) -> None:
    source = build_on_files(tmp_path)
    lost = file_of(tmp_path, 2)
    lost.unlink()

    with pytest.raises(Rejected) as refused:
        records(source, 2, 4)

    assert str(refused.value) == (
        f"The data of split {source.split_id(2)} (records from 4 on) is gone: {lost} is missing."
    )


def test_a_missing_file_changes_no_other_split(build_on_files: Build, tmp_path: Path) -> None:
    source = build_on_files(tmp_path)
    before = records(source, 2, 0)
    file_of(tmp_path, 0).unlink()

    assert records(build_again(source), 2, 0) == before


def test_a_shrunken_file_is_not_mistaken_for_one_that_ends(
    build_on_files: Build, tmp_path: Path
) -> None:
    source = build_on_files(tmp_path)
    write_file(tmp_path, 2, first_id=7, size=3)

    assert records(source, 2, 3) == []
    with pytest.raises(Rejected, match=r"records from 4 on\) is gone: .*holds"):
        records(source, 2, 4)


def test_a_malformed_file_is_named(build_on_files: Build, tmp_path: Path) -> None:
    source = build_on_files(tmp_path)
    broken = file_of(tmp_path, 2)
    broken.write_bytes(b"this is not, a file, of this format\n")

    with pytest.raises(Rejected) as refused:
        records(source, 2, 0)

    assert f"The input file {broken} is malformed" in str(refused.value)
    with pytest.raises(Rejected, match="malformed"):
        source.validate()


def test_a_truncated_file_is_named_not_read_as_shorter(tmp_path: Path) -> None:
    source = BUILDERS["parquet"](tmp_path)
    broken = file_of(tmp_path, 2)
    broken.write_bytes(broken.read_bytes()[:-20])

    with pytest.raises(Rejected, match=r"00002\.parquet is malformed"):
        records(source, 2, 0)


def test_a_missing_input_column_is_refused(build_on_files: Build, tmp_path: Path) -> None:
    source = build_on_files(tmp_path)
    if isinstance(source, JsonLinesFiles):
        return  # here a missing field is null
    drop_last_column(file_of(tmp_path, 2))

    with pytest.raises(Rejected, match=r"00002\..* (has no column at|Expected 2 columns, got 1)"):
        source.validate()
    with pytest.raises(Rejected, match=r"00002\."):
        records(source, 2, 0)


def test_whole_files_validate(build: Build, tmp_path: Path) -> None:
    source = build(tmp_path)

    source.validate()

    assert [len(records(source, index, 0)) for index in range(len(SIZES))] == SIZES


class FakeSource:
    """The contract in its simplest form: rows in memory."""

    def __init__(self, splits: list[pa.RecordBatch]) -> None:
        self._splits = splits
        self.schema = SCHEMA
        self.timestamp_column = "at"
        self.out_of_orderness_ms = 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"split {index}" if index < len(self._splits) else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        yield self._splits[index].slice(offset)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        if index >= len(self._splits) or offset >= self._splits[index].num_rows:
            return None
        return int(self._splits[index].column("at").cast(pa.int64())[offset].as_py())


def parquet(directory: Path, *, forever: bool = False) -> Source:
    files = write_all(directory, ".parquet")
    return ParquetFiles(
        files,
        schema=SCHEMA,
        timestamp_column="at",
        batch_rows=1,
        forever=forever,
        cycle_shift_ms=50,
    )


def csv(directory: Path, *, repeat: int = 1) -> Source:
    return CsvFiles(write_all(directory, ".csv"), schema=CSV_SCHEMA, block_bytes=32, repeat=repeat)


def json_lines(directory: Path) -> Source:
    return JsonLinesFiles(
        write_all(directory, ".jsonl"), schema=SCHEMA, timestamp_column="at", block_bytes=64
    )


BUILDERS: dict[str, Build] = {
    "json lines": json_lines,
    "fake": lambda _: FakeSource([rows(first, size) for first, size in extents()]),
    "parquet": parquet,
    "parquet for ever": lambda directory: parquet(directory, forever=True),
    "csv": csv,
    "csv repeated": lambda directory: csv(directory, repeat=3),
}


def build_again(source: Source) -> Source:
    if isinstance(source, CsvFiles):
        return CsvFiles(source.files, schema=source.schema, repeat=source.repeat)
    if isinstance(source, JsonLinesFiles):
        return JsonLinesFiles(source.files, schema=source.schema)
    if isinstance(source, ParquetFiles):
        return ParquetFiles(source.files, schema=source.schema, forever=source.forever)
    return source


def splits(source: Source) -> list[int]:
    """Returns all splits, or three cycles of an endless source."""
    return [index for index in range(3 * len(SIZES)) if source.split_id(index) is not None]


def records(source: Source, index: int, offset: int) -> list[dict[str, object]]:
    return [row for batch in source.read(index, offset) for row in batch.to_pylist()]


def time_of(source: Source, row: dict[str, object]) -> int | None:
    if source.timestamp_column is None:
        return None
    array = pa.array([row[source.timestamp_column]], EVENT_TIME)
    return int(array.cast(pa.int64())[0].as_py())


def extents() -> list[tuple[int, int]]:
    return [(sum(SIZES[:index]), size) for index, size in enumerate(SIZES)]


def rows(first_id: int, size: int) -> pa.RecordBatch:
    ids = range(first_id, first_id + size)
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(ids, EVENT_TIME)], schema=SCHEMA)


def write_all(directory: Path, suffix: str) -> list[Path]:
    files = [directory / f"{index:05}{suffix}" for index in range(len(SIZES))]
    for index, (file, (first_id, size)) in enumerate(zip(files, extents(), strict=True)):
        if not file.exists():
            file.touch()
            write_file(directory, index, first_id=first_id, size=size)
    return files


def write_file(directory: Path, index: int, *, first_id: int, size: int) -> None:
    """Writes Parquet in row groups of three with an unused column, or JSON lines, or CSV."""
    file = file_of(directory, index)
    batch = rows(first_id, size)
    if file.suffix == ".parquet":
        extra = pa.array(["unused"] * size, pa.string())
        table = pa.table([extra, batch["at"], batch["id"]], names=["unused", "at", "id"])
        pq.write_table(table, file, row_group_size=3)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json_line(row) for row in batch.to_pylist()))
    else:
        names = pa.array([f"n{identifier}" for identifier in batch["id"].to_pylist()], pa.string())
        table = pa.table([batch["id"], names], names=["id", "name"])
        pacsv.write_csv(table, file, pacsv.WriteOptions(include_header=False))


def json_line(row: dict[str, Any]) -> str:
    """Adds an unused field, and a blank line now and then."""
    line = json.dumps({"unused": [1], "at": row["at"].isoformat(), "id": row["id"]})
    return line + ("\n\n" if row["id"] % 3 == 0 else "\n")


def file_of(directory: Path, index: int) -> Path:
    return next(file for file in directory.iterdir() if file.stem == f"{index:05}")


def drop_last_column(file: Path) -> None:
    if file.suffix == ".parquet":
        pq.write_table(pq.read_table(file).drop_columns(["at"]), file)
    else:
        file.write_text("".join(f"{line.split(',')[0]}\n" for line in file.read_text().split()))
