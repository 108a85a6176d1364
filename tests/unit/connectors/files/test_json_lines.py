"""JSON lines: the error names the line that does not fit, wherever it is."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files import json_lines
from pipelines.connectors.files.json_lines import JsonLinesFiles
from pipelines.connectors.json_rows import MalformedLine, decode_lines
from pipelines.connectors.source import MalformedRecord
from pipelines.connectors.watermark_strategy import EVENT_TIME
from pipelines.domain.errors import Rejected

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize("bad", ['{"id": }', '{"id": "x"}', "5", '{"id": 1} {"id": 2}', "{"])
@pytest.mark.parametrize("line", [1, 7, 20])
def test_a_malformed_line_is_named(tmp_path: Path, bad: str, line: int) -> None:
    lines = [f'{{"id": {number}}}' for number in range(20)]
    lines[line - 1] = bad
    source = source_of(tmp_path, lines, block_bytes=50)

    with pytest.raises(Rejected, match=rf"a\.jsonl is malformed in line {line}: .") as refused:
        list(source.read(0, 0))

    assert "row" not in str(refused.value)


def test_blank_lines_count_as_lines_and_not_as_records(tmp_path: Path) -> None:
    source = source_of(tmp_path, ['{"id": 1}', "", "  ", '{"id": 2}', "oops", ""])

    with pytest.raises(Rejected, match="in line 5:"):
        list(source.read(0, 1))


def test_a_missing_field_is_null_and_an_unrequested_one_is_left_out(tmp_path: Path) -> None:
    source = source_of(tmp_path, ['{"id": 1, "more": {"deep": [1]}}', '{"name": "b"}'])

    rows = [row for batch in source.read(0, 0) for row in batch.to_pylist()]

    assert rows == [{"id": 1, "name": None}, {"id": None, "name": "b"}]


def test_a_record_without_event_time_is_refused_with_its_line(tmp_path: Path) -> None:
    schema = pa.schema([("at", EVENT_TIME)])
    (tmp_path / "a.jsonl").write_text('{"at": "2026-01-01T00:00:00Z"}\n\n{}\n')
    source = JsonLinesFiles(tmp_path, schema=schema, timestamp_column="at")

    with pytest.raises(Rejected, match=r"Line 3 of the input file .*a\.jsonl has no at"):
        list(source.read(0, 0))


@pytest.mark.parametrize("block_bytes", [20, 50, 10_000])
@pytest.mark.parametrize("bad", [0, 3, 9])
def test_reading_yields_rows_before_a_malformed_line_and_resumes_after_it(
    tmp_path: Path, bad: int, block_bytes: int
) -> None:
    lines = [f'{{"id": {number}}}' for number in range(10)]
    lines[bad] = '{"id": oops}'
    source = source_of(tmp_path, ["", *lines], block_bytes=block_bytes)
    given: list[int] = []

    with pytest.raises(MalformedRecord) as refused:
        given.extend(n for batch in source.read(0, 0) for n in batch.column("id").to_pylist())
    behind = source.read(0, refused.value.offset + 1)

    assert (refused.value.offset, refused.value.text) == (bad, lines[bad])
    assert given == list(range(bad))
    assert [n for batch in behind for n in batch.column("id").to_pylist()] == list(
        range(bad + 1, 10)
    )


def test_a_line_without_event_time_is_one_malformed_record(tmp_path: Path) -> None:
    schema = pa.schema([("at", EVENT_TIME)])
    (tmp_path / "a.jsonl").write_text('{"at": "2026-01-01T00:00:00Z"}\n{"no": 1}\n')
    batches = JsonLinesFiles(tmp_path, schema=schema, timestamp_column="at").read(0, 0)

    assert next(batches).num_rows == 1
    with pytest.raises(MalformedRecord) as refused:
        next(batches)
    assert (refused.value.offset, refused.value.text) == (1, '{"no": 1}')


def test_the_earlier_of_two_faults_is_reported_and_no_record_before_it_is_lost(
    tmp_path: Path,
) -> None:
    """The record without a time comes first, but is found after the one that does not fit."""
    schema = pa.schema([("at", EVENT_TIME), ("id", pa.int64())])
    good, timeless, odd = '{"at": "2026-01-01T00:00:00Z"}', '{"id": 1}', '{"id": "odd"}'
    (tmp_path / "a.jsonl").write_text("\n".join([good, good, timeless, good, odd, ""]))
    source = JsonLinesFiles(tmp_path, schema=schema, timestamp_column="at")

    assert what_comes(source.read(0, 0)) == (2, (2, timeless))
    assert what_comes(source.read(0, 3)) == (1, (4, odd))


def what_comes(batches: Iterator[pa.RecordBatch]) -> tuple[int, tuple[int, str]]:
    """Returns the number of rows, and the offset and text of the unreadable record after them."""
    rows: list[int] = []
    with pytest.raises(MalformedRecord) as refused:
        rows.extend(batch.num_rows for batch in batches)
    return sum(rows), (refused.value.offset, refused.value.text)


def test_a_line_beyond_the_limit_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "LINE_BYTES_MAX", 100)
    source = source_of(tmp_path, ['{"id": 1}', '{"name": "' + "x" * 200 + '"}'], block_bytes=32)

    with pytest.raises(Rejected, match="behind line 1 is longer than 100 bytes"):
        list(source.read(0, 0))


def test_decoding_names_the_first_line_that_does_not_fit() -> None:
    assert decode_lines([], SCHEMA).num_rows == 0
    with pytest.raises(MalformedLine) as malformed:
        decode_lines([b'{"id": 1}', b'{"id": true}', b"["], SCHEMA)
    assert malformed.value.line == 1


@pytest.mark.parametrize(
    ("lines", "malformed"),
    [
        ([b'{"id": 1}', b'{"id": 2} {"id": 3}', b""], 1),
        ([b'{"id": 1}', b" ", b'{"id": 2}\n{"id": 3}'], 1),
        ([b'{"id": 1', b'} {"id": 2}'], 0),
        ([b'{"id": 1}\n{"id": 2}\n{"id": 3', b" ", b"}"], 0),
        ([b"", b'{"id": 1}'], 0),
    ],
)
def test_as_many_objects_as_lines_but_not_one_per_line_are_refused(
    lines: list[bytes], malformed: int
) -> None:
    with pytest.raises(MalformedLine) as refused:
        decode_lines(lines, SCHEMA)

    assert refused.value.line == malformed


def test_an_object_may_have_space_around_it_and_within_it() -> None:
    lines = [b'\xef\xbb\xbf{"id": 1}\r', b' {"id":\n 2} ', b'\t{"name": "}\\n{"}']

    batch = decode_lines(lines, SCHEMA)

    assert batch.column("id").to_pylist() == [1, 2, None]


def source_of(directory: Path, lines: list[str], *, block_bytes: int = 1 << 20) -> JsonLinesFiles:
    (directory / "a.jsonl").write_text("\n".join(lines))
    return JsonLinesFiles(directory, schema=SCHEMA, block_bytes=block_bytes)
