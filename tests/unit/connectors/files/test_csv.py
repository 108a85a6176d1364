"""The CSV source: rules beyond the contract suite of all sources."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files import csv
from pipelines.connectors.files.csv import CsvFiles
from pipelines.connectors.source import MalformedRecord
from pipelines.domain.errors import Rejected

SCHEMA = pa.schema([("app_id", pa.int64()), ("user_id", pa.int64())])


@pytest.mark.parametrize("wanted", [["app_id", "user_id"], ["user_id"]], ids=len)
def test_a_value_that_does_not_fit_is_refused_by_file_and_column(
    tmp_path: Path, wanted: list[str]
) -> None:
    source = of_columns(SCHEMA, wanted, write(tmp_path, "1,2\n3,x\n"), 1 << 20)

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
@pytest.mark.parametrize("wanted", [["app_id", "user_id"], ["app_id"]], ids=len)
def test_each_misfit_line_is_reported_with_its_offset_and_the_rest_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: list[str],
    block_bytes: int,
    end: str,
) -> None:
    monkeypatch.setattr(csv, "LINES", 3)
    lines = [BAD.get(number, f"{number},{10 * number}" * (number != 6)) for number in range(20)]
    source = of_columns(SCHEMA, wanted, write(tmp_path, end.join(lines)), block_bytes)

    read, bad, said = read_all(source)

    assert bad == BAD
    assert all(
        f"a.csv is malformed in line {at + 1}: " in each for at, each in zip(bad, said, strict=True)
    )
    good = [number if number != 6 else None for number in range(20) if number not in BAD]
    assert read == good


TEXT = pa.schema([("app_id", pa.int64()), ("name", pa.string())])
UNENDED = {
    "unended": ['1,"abc'],
    "ended in the next line": ['1,"abc', 'def"'],
    "ended two lines further": ['1,"abc', '2,"y",', '3,z"'],
    "ended by the next quote": ['1,"abc', '2,"def"'],
    "in the first column": ['"1,abc'],
}


@pytest.mark.parametrize("block_bytes", [32, 1 << 20])
@pytest.mark.parametrize("before", [0, 7])
@pytest.mark.parametrize("lines", UNENDED.values(), ids=UNENDED)
@pytest.mark.parametrize("wanted", [["app_id", "name"], ["app_id"]], ids=len)
def test_an_unclosed_quote_is_reported_and_all_other_lines_are_read_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: list[str],
    lines: list[str],
    before: int,
    block_bytes: int,
) -> None:
    """Each line is a record, however Arrow reads its quotes."""
    monkeypatch.setattr(csv, "LINES", 3)
    good = [f'{100 + number},"said ""{number}"", twice"' for number in range(before)]
    behind = [f"{200 + number},sentinel" for number in range(4)] + ["misfit,x", "300,sentinel"]
    text = "\n".join([*good, *lines, *behind, ""])
    source = of_columns(TEXT, wanted, write(tmp_path, text), block_bytes)

    read, bad, said = read_all(source)

    fits = {'2,"def"': 2, '3,z"': 3}
    suspects = {before + at: line for at, line in enumerate(lines) if line not in fits}
    misfit = before + len(lines) + 4
    passed = [fits[line] for line in lines if line in fits]
    numbers = [*(100 + number for number in range(before)), *passed, 200, 201, 202, 203, 300]
    assert bad == {**suspects, misfit: "misfit,x"}
    assert read == numbers
    assert f"a.csv is malformed in line {before + 1}: " in said[0]
    for offset in range(misfit + 3):
        rest, _, _ = read_all(source, offset)
        assert rest == numbers[sum(at not in bad for at in range(offset)) :]


def test_an_unclosed_quote_is_refused_at_submission_with_its_line(tmp_path: Path) -> None:
    source = CsvFiles(write(tmp_path, '1,x\n7,"abc\n8,y\n'), schema=TEXT)

    with pytest.raises(
        Rejected, match=r"a\.csv is malformed in line 2: a quoted value does not end in its line\.$"
    ):
        source.validate()


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.binary(4),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("wanted", [["app_id", "name"], ["app_id"]], ids=len)
def test_a_line_break_is_refused_in_every_column_type_even_if_unread(
    tmp_path: Path, type_: pa.DataType, wanted: list[str], line_break: str
) -> None:
    schema = pa.schema([("app_id", pa.int64()), ("name", type_)])
    width = 4 - len(line_break)
    quoted = f'1,wxyz\n2,"{"a" * width}{line_break}"\n3,wxyz\n'
    source = of_columns(schema, wanted, write(tmp_path, quoted), 1 << 20)

    with pytest.raises(Rejected, match="a quoted value does not end in its line"):
        read_some(source)


@pytest.mark.parametrize("block_bytes", [32, 1 << 20])
@pytest.mark.parametrize("with_quotes", [False, True])
def test_unread_columns_may_hold_anything_without_disturbing_the_others(
    tmp_path: Path, with_quotes: bool, block_bytes: int
) -> None:
    others = ["x", "", "\\xff", "9" * 30, "y"] * 10
    if with_quotes:
        others[33] = '"a, ""b"""'
    lines = [f"{number},{other},{10 * number}" for number, other in enumerate(others)]
    schema = pa.schema([("last", pa.int32()), ("first", pa.int64())])
    file = write(tmp_path, "\n".join(lines))
    source = CsvFiles(
        file, schema=schema, file_columns=("first", "other", "last"), block_bytes=block_bytes
    )

    for offset in range(51):
        rest = pa.Table.from_batches(source.read(0, offset), schema)
        assert rest["first"].to_pylist() == list(range(offset, 50))
        assert rest["last"].to_pylist() == list(range(10 * offset, 500, 10))


def test_a_missing_value_is_reported_even_in_a_column_that_is_not_read(tmp_path: Path) -> None:
    source = of_columns(SCHEMA, ["app_id"], write(tmp_path, "1,2\n3\n"), 1 << 20)

    with pytest.raises(Rejected, match=r"a\.csv is malformed in line 2: .*Expected 2 columns"):
        source.validate()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["app_id"], "Column user_id of the schema is not among the file's: app_id."),
        (
            ["app_id", "user_id", "app_id"],
            "A file cannot have two columns of the name app_id; rename one.",
        ),
    ],
    ids=["absent", "twice"],
)
def test_invalid_file_columns_are_refused(tmp_path: Path, columns: list[str], said: str) -> None:
    with pytest.raises(Rejected) as refused:
        CsvFiles(write(tmp_path, "1,2\n"), schema=SCHEMA, file_columns=columns)

    assert str(refused.value) == said


def test_mixed_line_endings_refuse_the_file_without_blaming_a_line(
    tmp_path: Path,
) -> None:
    source = CsvFiles(write(tmp_path, "1,2\r3,4\r5\r"), schema=SCHEMA)

    with pytest.raises(Rejected, match=r"a\.csv is malformed: ") as refused:
        list(source.read(0, 0))

    assert not isinstance(refused.value, MalformedRecord)


@pytest.mark.slow
def test_a_line_of_64_mib_is_read_as_one_record(tmp_path: Path) -> None:
    """The line is longer than a block that is parsed at once; reading starts before or after it."""
    schema = pa.schema([("key", pa.int64()), ("text", pa.string())])
    source = CsvFiles(write(tmp_path, f"1,x\n2,{'y' * (64 << 20)}\n3,z\n"), schema=schema)
    sizes = [(1, 1), (2, 64 << 20), (3, 1)]

    for offset in (0, 2):
        rows = [row for batch in source.read(0, offset) for row in batch.to_pylist()]
        assert [(row["key"], len(row["text"])) for row in rows] == sizes[offset:]


def test_each_round_reads_all_files(tmp_path: Path) -> None:
    source = CsvFiles(write(tmp_path, "1,2\n"), schema=SCHEMA, repeat=2)

    assert [source.split_id(index) for index in range(3)] == [
        "a.csv",
        "a.csv (round 1)",
        None,
    ]
    assert pa.Table.from_batches(source.read(1, 0)).to_pylist() == [{"app_id": 1, "user_id": 2}]


def of_columns(
    lines: pa.Schema, wanted: list[str], files: list[Path], block_bytes: int
) -> CsvFiles:
    schema = pa.schema([lines.field(name) for name in wanted])
    return CsvFiles(files, schema=schema, file_columns=lines.names, block_bytes=block_bytes)


def read_all(
    source: CsvFiles, offset: int = 0
) -> tuple[list[int | None], dict[int, str], list[str]]:
    """Returns the records that fit, {offset: line} of the others, and the errors of the others."""
    read: list[int | None] = []
    bad: dict[int, str] = {}
    said: list[str] = []
    while True:
        try:
            for batch in source.read(0, offset):
                read += batch.column("app_id").to_pylist()
            return read, bad, said
        except MalformedRecord as error:
            bad[error.offset] = error.text
            said.append(str(error))
            offset = error.offset + 1


def read_some(source: CsvFiles) -> None:
    for _ in source.read(0, 0):
        pass


def write(directory: Path, text: str) -> list[Path]:
    file = directory / "a.csv"
    file.write_bytes(text.encode().replace(b"\\xff", b"\xff"))
    return [file]
