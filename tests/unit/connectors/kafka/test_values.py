"""Decoding a batch: every record becomes a row or has a problem, in any mix of the two."""

import json
import random

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Message

from pipelines.connectors.dead_letters import COLUMN, DeadLetter, letters_of
from pipelines.connectors.json_rows import decode_each_line
from pipelines.connectors.kafka import reader as kafka_reader
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.reader import TopicsReader
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.values import JsonValues
from pipelines.connectors.source import LoggedRecords, MalformedRecord
from pipelines.connectors.split_progress import SplitProgress
from tests.unit.connectors.kafka.fake_consumer import FakeConsumer

ADDRESS = KafkaAddress("nowhere:1")
EVENTS = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
AT = "2026-01-01T00:00:00Z"
MALFORMED = (b"oops", b"", b"{", b'{"n": 1}{"n": 2}', b'{"n": "x"}', b"[1]", b'{"n": 1}\n{"n": 2}')


@pytest.mark.parametrize("seed", range(60))
def test_each_line_is_a_row_or_has_a_problem(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    badness = rng.choice([0.0, 0.01, 0.5, 1.0])
    lines = [
        rng.choice(MALFORMED) if rng.random() < badness else json.dumps({"n": n}).encode()
        for n in range(rng.randint(0, 200))
    ]
    bad = {n for n, line in enumerate(lines) if line in MALFORMED}

    rows, problems = decode_each_line(lines, pa.schema([("n", pa.int64())]))

    assert set(problems) == bad
    assert rows.column("n").to_pylist() == [n for n in range(len(lines)) if n not in bad]
    assert all(problem and not problem.endswith(".") for problem in problems.values())


def test_dead_letters_keep_their_place_and_the_others_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [good(0), b"oops", good(2), b'{"n": 3}', None, good(5)]
    consumer = consumer_of(values, monkeypatch)
    reader = TopicsReader(ADDRESS, JsonValues(EVENTS), "at", read_committed=True, dead_letters=True)

    batch = next(reader.read(SplitProgress("t-0")))

    assert batch.offsets.tolist() == [0, 1, 2, 3, 5]  # a deletion is no record
    assert batch.records.column("n").to_pylist() == [0, None, 2, None, 5]
    letters = letters_of(batch.records.column(COLUMN).drop_null().to_pylist()).to_pylist()
    assert [(each["offset"], each["value"], each["key"]) for each in letters] == [
        (1, b"oops", b"k1"),
        (3, b'{"n": 3}', b"k3"),
    ]
    assert letters[0]["error"].startswith("The record at offset 1 of partition 0 of topic t is mal")
    assert letters[1]["error"] == (
        "The record at offset 3 of partition 0 of topic t has no at: no event time."
    )
    assert not consumer.log


def test_without_dead_letters_the_records_before_the_first_malformed_one_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer_of([good(0), good(1), b'{"n": 2}', b"oops", good(4)], monkeypatch)
    reader = TopicsReader(ADDRESS, JsonValues(EVENTS), "at", read_committed=True)
    batches = reader.read(SplitProgress("t-0"))

    assert next(batches).offsets.tolist() == [0, 1]
    with pytest.raises(MalformedRecord, match=r"offset 2 .* has no at") as met:
        next(batches)
    assert (met.value.row, met.value.offset, met.value.text) == (2, 2, '{"n": 2}')


@pytest.mark.parametrize("dead_letters", [False, True])
def test_each_batch_has_the_schema_of_the_source(
    monkeypatch: pytest.MonkeyPatch, dead_letters: bool
) -> None:
    consumer_of([good(0), good(1)], monkeypatch)
    source = KafkaTopics(ADDRESS, ("t",), format=JsonValues(EVENTS), dead_letters=dead_letters)

    batches: list[LoggedRecords] = []
    reading = source.open().read(SplitProgress("t-0"))
    batches += [next(reading), next(reading)]  # the second is empty

    assert [batch.records.schema for batch in batches] == [source.schema] * 2
    assert source.row_of_text('{"n": 1}').schema == source.schema


def test_a_dead_letter_is_read_back_from_its_column_unchanged() -> None:
    whole = DeadLetter(
        topic="t", partition=3, offset=1 << 40, at_ms=None, key=None, value=b"\x00\xff", error="é"
    )

    (back,) = letters_of([msgspec.msgpack.encode(whole)]).to_pylist()

    assert back == {
        **{name: getattr(whole, name) for name in ("topic", "partition", "offset", "key")},
        **{"at": None, "value": b"\x00\xff", "error": "é"},
    }


def good(n: int) -> bytes:
    return json.dumps({"n": n, "at": AT}).encode()


def consumer_of(values: list[bytes | None], monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    consumer = FakeConsumer()
    monkeypatch.setattr(kafka_reader, "Consumer", consumer.made)
    consumer.log = [
        Message(
            topic="t",
            partition=0,
            offset=offset,
            key=f"k{offset}".encode(),
            value=value,
            timestamp=(1, offset),
        )
        for offset, value in enumerate(values)
    ]
    return consumer
