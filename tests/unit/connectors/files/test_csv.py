"""CSV source: what the contract suite does not ask of every source."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files.csv import CsvFiles
from pipelines.domain.errors import Rejected

SCHEMA = pa.schema([("app_id", pa.int64()), ("user_id", pa.int64())])


def test_a_value_that_does_not_fit_names_file_and_column(tmp_path: Path) -> None:
    source = CsvFiles(write(tmp_path, "1,2\n3,x\n"), schema=SCHEMA)

    with pytest.raises(Rejected, match=r"a\.csv is malformed: In column user_id: .*'x'\.$"):
        source.validate()


def test_a_blank_line_is_a_record_of_nulls_so_that_offsets_hold(tmp_path: Path) -> None:
    source = CsvFiles(write(tmp_path, "1,2\n\n3,4\n"), schema=SCHEMA)

    whole = pa.Table.from_batches(source.read(0, 0))

    assert whole["app_id"].to_pylist() == [1, None, 3]
    for offset in range(4):
        rest = pa.Table.from_batches(source.read(0, offset), SCHEMA)
        assert rest.equals(whole.slice(offset))


def test_each_round_reads_all_files(tmp_path: Path) -> None:
    source = CsvFiles(write(tmp_path, "1,2\n"), schema=SCHEMA, repeat=2)

    assert [source.split_id(index) for index in range(3)] == [
        "a.csv",
        "a.csv (round 1)",
        None,
    ]
    assert pa.Table.from_batches(source.read(1, 0)).to_pylist() == [{"app_id": 1, "user_id": 2}]


def write(directory: Path, text: str) -> list[Path]:
    file = directory / "a.csv"
    file.write_text(text)
    return [file]
