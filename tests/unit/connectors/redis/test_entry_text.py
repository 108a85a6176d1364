"""An entry that does not fit becomes text in a quarantine, and a row once the columns change."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files.quarantine import ReplayedQuarantine, quarantined
from pipelines.connectors.json_rows import json_lines_of, record_text
from pipelines.connectors.redis.stream_entries import row_of_fields, text_of_fields
from pipelines.connectors.redis.streams import RedisStreams
from pipelines.connectors.source import MalformedRecord, UnreadableText
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.poison import PoisonRecord

EVENTS = Uid("events")
NARROW = pa.schema([("n", pa.int8()), ("at", pa.timestamp("ms", "UTC")), ("key", pa.binary())])
WIDE = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", "UTC")), ("key", pa.binary())])
FIELDS = [b"n", b"300", b"key", b"\xff\x00", b"at", b"1767225600000", b"more", b"\xfe"]


def test_the_text_is_a_json_object_that_preserves_binary_fields() -> None:
    text = text_of_fields(FIELDS, NARROW).decode()

    assert json.loads(text) == {"n": "300", "key": "/wA=", "at": "1767225600000", "more": "\\xfe"}
    (row,) = row_of_fields(text, WIDE).to_pylist()
    assert (row["n"], row["key"], row["at"].year) == (300, b"\xff\x00", 2026)


def test_the_first_of_several_fields_with_the_same_name_counts() -> None:
    assert json.loads(text_of_fields([b"n", b"1", b"n", b"2"], NARROW)) == {"n": "1"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"n": "300"}', "column n: "),
        ("n 300", "not one JSON object"),
        ("[]", "not one JSON object"),
        ('{"key": "no base64"}', "column key: "),
    ],
)
def test_text_that_still_does_not_fit_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UnreadableText, match=reason):
        row_of_fields(text, NARROW)


def test_a_replay_reads_unread_entries_by_the_current_columns(
    tmp_path: Path,
) -> None:
    typed = pa.RecordBatch.from_pylist([{"n": 1, "at": 0, "key": b"k"}], schema=NARROW)
    unread = text_of_fields(FIELDS, NARROW).decode()
    put(tmp_path, [("count", record_text(typed)), ("events", unread), ("events", unread)])

    with pytest.raises(MalformedRecord, match=r"line 2 .* column n: ") as refused:
        read(tmp_path, NARROW)
    rows = read(tmp_path, WIDE)

    assert (refused.value.offset, refused.value.text) == (1, unread)
    assert [(row["n"], row["key"]) for row in rows] == [(1, b"k"), *[(300, b"\xff\x00")] * 2]


def read(home: Path, schema: pa.Schema) -> list[dict[str, object]]:
    source = RedisStreams("redis://nowhere", ("s",), schema=schema, timestamp_column="at")
    replayed = ReplayedQuarantine.of(home, EVENTS, source, RunId("run-2"), looks=True)
    (split,) = replayed.find(set(), is_start=True)
    batches = replayed.read(split)
    return [row for batch in batches for row in batch.to_pylist()]  # type: ignore[union-attr]


def put(home: Path, records: list[tuple[str, str]]) -> None:
    """Quarantines records, each given with the operator that failed on it."""
    (home / EVENTS).mkdir(exist_ok=True)
    lines = [quarantined(poison(operator), record) for operator, record in records]
    file = home / EVENTS / "part-run-1-00000001-0-0.jsonl"
    file.write_bytes(json_lines_of(pa.Table.from_batches(lines)))


def poison(operator: str) -> PoisonRecord:
    return PoisonRecord(
        source=EVENTS,
        split="s",
        offset=1,
        operator=Uid(operator),
        error_type="",
        error="",
        trace="",
    )
