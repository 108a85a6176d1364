"""Protobuf: rows that were written are read back.

A version that does not fit ours is refused by name. Bytes that are no message cost no other record.
"""

import base64
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.connectors.kafka.protobuf import ProtobufValues, indexes_of, without_indexes
from pipelines.connectors.kafka.registry import SchemaRegistry, header_of
from pipelines.connectors.kafka.values import Decoded, Fetched
from pipelines.domain.errors import Rejected
from tests.brokers.protobuf_messages import Field, file_of, message_of
from tests.brokers.schema_registry import Registry, schema_registry

ORDER = message_of(file_of("order.proto"))
COLUMNS = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("colour", pa.string()),
        ("place", pa.struct([("x", pa.int64())])),
        ("tags", pa.list_(pa.string())),
        ("ratio", pa.float64()),
    ]
)
FULL = {
    "n": -(1 << 62),
    "text": "é\0",
    "at": datetime(1900, 1, 1, 1, 2, 3, 4, UTC),
    "colour": "BLUE",
    "place": {"x": 5},
    "tags": ["a", ""],
    "ratio": 0.1,
}
UNSET = {"n": 0, "text": "", "at": None, "colour": "RED", "place": None, "tags": [], "ratio": 0.0}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as running:
        yield running


@pytest.mark.parametrize("has_registry", [False, True])
def test_written_rows_are_read_back(registry: Registry, has_registry: bool) -> None:
    place = SchemaRegistry(registry.url) if has_registry else None
    values = ProtobufValues(COLUMNS, ORDER, registry=place)
    rows = pa.RecordBatch.from_pylist([FULL, UNSET, FULL], schema=COLUMNS)

    encoder, decoder = values.encoder("orders"), values.open()
    back = [decoder.decoded(fetched(encoder.encoded(rows))) for _ in range(2)]

    assert all(each.rows.equals(rows) and not each.problems for each in back)
    if has_registry:
        assert list(registry.subjects) == ["orders-value"]
        assert len(registry.asked) == 2, "the schema is registered once and asked for once"


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (("n", pa.string()), r"field Order\.n does not go into a column of type string"),
        (("n", pa.int32()), r"field Order\.n does not go into a column of type int32"),
        (("other", pa.int64()), "message Order has no field other"),
        (("tags", pa.string()), r"field Order\.tags does not go into"),
        (("at", pa.timestamp("us")), r"field Order\.at does not go into"),
        (("place", pa.struct([("y", pa.int64())])), "message Place has no field y"),
    ],
)
def test_a_column_that_does_not_match_the_message_is_refused(
    column: tuple[str, pa.DataType], why: str
) -> None:
    with pytest.raises(Rejected, match=f"The Protobuf message does not go with the columns: {why}"):
        ProtobufValues(pa.schema([column]), ORDER)


def test_an_incompatible_version_of_the_message_is_refused_by_name(
    registry: Registry,
) -> None:
    values = ProtobufValues(COLUMNS, ORDER, registry=SchemaRegistry(registry.url))
    alike = registry.add(text_of(file_of("a.proto", Field.TYPE_UINT32)), "PROTOBUF")
    other = registry.add(text_of(file_of("b.proto", Field.TYPE_STRING)), "PROTOBUF")
    avro = registry.add("{}", "AVRO")
    record, order = ORDER(n=5).SerializeToString(), indexes_of(ORDER.DESCRIPTOR)
    records = [header_of(number) + order + record for number in (alike, other, avro, 99)]
    records.append(header_of(alike) + b"\2\x12" + record)

    decoded = values.open().decoded(fetched(records))

    assert decoded.rows.column("n").to_pylist() == [5]
    assert said(decoded, 1) == (
        f"the schema {other} that wrote it is refused: its field Order.n with number 1 is another"
        " one than Order.n"
    )
    assert said(decoded, 2).endswith("it is a schema of AVRO, not of Protobuf")
    assert said(decoded, 3).endswith("has no schema 99")
    assert said(decoded, 4).endswith("it has no message at [9]")


def test_message_indexes_follow_confluents_format() -> None:
    file = file_of("order.proto")
    places = {"First": b"\0", "Order": b"\2\2", "Order.Place": b"\4\2\0"}

    for name, expected in places.items():
        assert indexes_of(message_of(file, name).DESCRIPTOR) == expected
    assert [without_indexes(each + b"x") for each in places.values()] == [
        ((0,), b"x"),
        ((1,), b"x"),
        ((1, 0), b"x"),
    ]


def test_an_enum_of_a_newer_writer_stays_a_number_and_a_time_out_of_range_is_a_problem() -> None:
    values = ProtobufValues(COLUMNS, ORDER)
    late = ORDER(n=1)
    late.at.seconds = 1 << 62
    records = [each.SerializeToString() for each in (ORDER(n=0, colour=7), late, ORDER(n=2))]

    decoded = values.open().decoded(fetched(records))

    assert decoded.rows.column("n").to_pylist() == [0, 2]
    assert decoded.rows.column("colour").to_pylist() == ["7", "RED"]
    assert set(decoded.problems) == {1}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 40), st.booleans())
@example([b"\x12\xff\xff\xff\xff\x0f"], 3, False)
@example([b"\0\0\0\0\1\xff\xff\xff\xff\x0f"], 3, True)
def test_each_record_of_arbitrary_bytes_is_a_row_or_a_problem(
    strange: list[bytes], cut: int, is_framed: bool
) -> None:
    """Truncated, with huge lengths, or with a wrong frame, between good records."""
    registry = SchemaRegistry("http://nowhere.invalid") if is_framed else None
    values = ProtobufValues(COLUMNS, ORDER, registry=registry)
    good = ORDER(n=7, text="seven").SerializeToString()
    decoder = values.open()
    if is_framed:  # the schema is known, so the registry is not asked
        strange = [b"\1" + each if each[:1] == b"\0" else each for each in strange]
        good = header_of(1) + b"\2\2" + good
        cut = min(cut, 4)
        decoder._refused[1, (1,)] = None
    records = [good, *strange, good[:cut], good]

    decoded = decoder.decoded(fetched(records))

    assert decoded.rows.num_rows + len(decoded.problems) == len(records)
    assert not {0, len(records) - 1} & set(decoded.problems)
    assert decoded.rows.column("n").to_pylist()[:: max(1, decoded.rows.num_rows - 1)] == [7, 7]
    for number in decoded.problems:
        assert said(decoded, number)


def test_a_row_that_does_not_fit_the_message_is_refused() -> None:
    values = ProtobufValues(pa.schema([("colour", pa.string())]), ORDER)
    rows = pa.RecordBatch.from_pylist([{"colour": "GREEN"}], schema=values.schema)

    with pytest.raises(Rejected, match="A row does not fit the Protobuf message of subject t-val"):
        values.encoder("t").encoded(rows)


def text_of(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def said(decoded: Decoded, number: int = 0) -> str:
    return getattr(decoded.problems[number], "problem", "")


def fetched(values: Sequence[bytes]) -> Fetched:
    numbers = np.arange(len(values), dtype=np.int64)
    return Fetched(numbers, [None] * len(values), list(values), numbers, 0)
