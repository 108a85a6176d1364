"""CSV source: what the contract suite does not ask of every source."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files import csv_lines
from pipelines.connectors.files.csv import CsvFiles
from pipelines.connectors.source import MalformedRecord
from pipelines.domain.errors import Rejected

SCHEMA = pa.schema([("app_id", pa.int64()), ("user_id", pa.int64())])


def test_a_value_that_does_not_fit_names_file_and_column(tmp_path: Path) -> None:
    source = CsvFiles(write(tmp_path, "1,2\n3,x\n"), schema=SCHEMA)

    with pytest.raises(
        Rejected, match=r"a\.csv is malformed in line 2: In column user_id: .*'x'\.$"
    ):
        source.validate()


def test_a_blank_line_is_a_record_of_nulls_so_that_offsets_hold(tmp_path: Path) -> None:
    source = CsvFiles(write(tmp_path, "1,2\n\n3,4\n"), schema=SCHEMA)

    whole = pa.Table.from_batches(source.read(0, 0))

    assert whole["app_id"].to_pylist() == [1, None, 3]
    for offset in range(4):
        rest = pa.Table.from_batches(source.read(0, offset), SCHEMA)
        assert rest.equals(whole.slice(offset))


BAD = {1: "x,2", 3: "4", 4: "4,5,6", 9: '"8,1', 17: "\\xff,1"}


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_line_that_does_not_fit_is_told_with_its_offset_and_all_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, end: str
) -> None:
    monkeypatch.setattr(csv_lines, "LINES", 3)
    lines = [BAD.get(number, f"{number},{10 * number}" * (number != 6)) for number in range(20)]
    source = CsvFiles(write(tmp_path, end.join(lines)), schema=SCHEMA, block_bytes=block_bytes)

    read, bad, said, offset = [], {}, [], 0
    while True:
        try:
            for batch in source.read(0, offset):
                read += batch.column("app_id").to_pylist()
            break
        except MalformedRecord as error:
            bad[error.offset] = error.text
            said.append(str(error))
            offset = error.offset + 1

    assert bad == BAD
    assert all(
        f"a.csv is malformed in line {at + 1}: " in each for at, each in zip(bad, said, strict=True)
    )
    good = [number if number != 6 else None for number in range(20) if number not in BAD]
    assert read == good


def test_where_lines_do_not_end_alike_the_file_is_refused_and_no_line_is_blamed(
    tmp_path: Path,
) -> None:
    source = CsvFiles(write(tmp_path, "1,2\r3,4\r5\r"), schema=SCHEMA)

    with pytest.raises(Rejected, match=r"a\.csv is malformed: ") as refused:
        list(source.read(0, 0))

    assert not isinstance(refused.value, MalformedRecord)


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
    file.write_bytes(text.encode().replace(b"\\xff", b"\xff"))
    return [file]
