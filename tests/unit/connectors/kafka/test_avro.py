"""Avro: rows that were written are read back.

A schema that does not fit the columns is refused by name. Bytes that no schema wrote cost no other
record.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelines.connectors.kafka.avro import AvroValues
from pipelines.connectors.kafka.registry import SchemaRegistry, header_of
from pipelines.connectors.kafka.values import Decoded, Fetched, check_columns
from pipelines.domain.errors import Rejected, Retryable
from tests.brokers.schema_registry import Registry, schema_registry

COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
ALL = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("small", pa.int32()),
        ("is", pa.bool_()),
        ("ratio", pa.float64()),
        ("half", pa.float32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("ms", "UTC")),
        ("fine", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
FULL: dict[str, Any] = {
    "n": -(1 << 62),
    "small": -5,
    "is": True,
    "ratio": 0.1,
    "half": 0.5,
    "text": "é\0",
    "raw": b"\xff\0",
    "at": datetime(2026, 1, 1, 1, 2, 3, 4000, UTC),
    "fine": datetime(1900, 1, 1, 1, 2, 3, 4, UTC),
    "local": datetime(2026, 1, 1, 1, 2, 3, 4),
    "day": date(1950, 1, 2),
    "price": Decimal("-12345.60"),
    "tags": ["a", None, ""],
    "place": {"x": 1, "y": None},
}
NOTHING_IN_IT = {"n": 1}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as running:
        yield running


@pytest.mark.parametrize("has_registry", [False, True])
def test_written_rows_are_read_back(registry: Registry, has_registry: bool) -> None:
    place = SchemaRegistry(registry.url) if has_registry else None
    values = AvroValues(ALL, registry=place)
    rows = pa.RecordBatch.from_pylist([FULL, NOTHING_IN_IT, FULL], schema=ALL)

    encoder, decoder = values.encoder("orders"), values.open()
    back = [decoder.decoded(fetched(encoder.encoded(rows))) for _ in range(3)]

    assert all(each.rows.equals(rows) and not each.problems for each in back)
    if has_registry:
        assert list(registry.subjects) == ["orders-value"]
        assert len(registry.asked) == 2, "the schema is registered once and asked for once"


def test_columns_match_fields_by_name_even_if_the_schema_changes_in_a_batch(
    registry: Registry,
) -> None:
    old = record([("n", "int"), ("more", {"type": "array", "items": "long"})])
    new = record(
        [
            ("text", ["null", "string"]),
            ("at", {"type": "long", "logicalType": "timestamp-micros"}),
            ("n", "long"),
        ]
    )
    values = AvroValues(COLUMNS, registry=SchemaRegistry(registry.url))
    ids = {"old": registry.add(json.dumps(old)), "new": registry.add(json.dumps(new))}
    of_old = [written(old, {"n": n, "more": [1, 2]}, ids["old"]) for n in (1, 3)]
    of_new = [written(new, {"n": n, "text": "x", "at": 1_999}, ids["new"]) for n in (2, 4)]
    mixed = [of_old[0], of_new[0], of_old[1], b"\0\0\0\0\x63", of_new[1]]

    decoded = values.open().decoded(fetched(mixed))

    assert decoded.rows.column("n").to_pylist() == [1, 2, 3, 4]
    assert decoded.rows.column("text").to_pylist() == [None, "x", None, "x"]
    assert decoded.rows.column("at").cast(pa.int64()).to_pylist() == [None, 1, None, 1]
    assert set(decoded.problems) == {3}
    assert "has no schema 99" in said(decoded, 3)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            [("n", "string"), ("text", "string")],
            "field Order.n of type string does not go into a column of type int64",
        ),
        (
            [("n", "long"), ("x", {"type": "array", "items": "null"})],
            "it has an array whose elements take no bytes",
        ),
        ([("other", "int")], "the record Order has none of the columns"),
        ([("n", ["null", "long", "string"])], "field Order.n of type string does not go into"),
        ([("at", "long")], "field Order.at of type long does not go into a column of type times"),
        (
            [("at", {"type": "long", "logicalType": "local-timestamp-millis"})],
            "of type local-timestamp-millis does not go into",
        ),
    ],
)
def test_a_schema_that_does_not_match_the_columns_is_refused_by_name(
    registry: Registry, schema: list[tuple[str, Any]], why: str
) -> None:
    text = json.dumps(record(schema))
    number = registry.add(text)
    values = AvroValues(COLUMNS, registry=SchemaRegistry(registry.url))
    decoder = values.open()

    both = [decoder.decoded(fetched([header_of(number) + b"\2\2"])) for _ in range(2)]

    assert all(f"the schema {number} that wrote it is refused: " in said(each) for each in both)
    assert why in said(both[0])
    assert len(registry.asked) == 1
    with pytest.raises(Rejected, match="The Avro schema does not go with the columns: "):
        AvroValues(COLUMNS, avro_schema=text)


def test_a_nullable_field_does_not_fit_a_non_nullable_column() -> None:
    columns = pa.schema([pa.field("n", pa.int64(), nullable=False)])

    with pytest.raises(Rejected, match=r"field Order\.n may be null, its column may not"):
        AvroValues(columns, avro_schema=json.dumps(record([("n", ["null", "long"])])))
    with pytest.raises(Rejected, match="the record Order has none of the columns"):
        AvroValues(columns, avro_schema=json.dumps(record([("x", "long")])))


def test_enums_and_uuids_are_text_and_a_schema_may_refer_to_another(registry: Registry) -> None:
    colour = {"type": "enum", "name": "Colour", "namespace": "shop", "symbols": ["RED", "BLUE"]}
    order = record([("colour", "Colour"), ("id", {"type": "string", "logicalType": "uuid"})])
    columns = pa.schema([("colour", pa.string()), ("id", pa.string())])
    registry.add(json.dumps(colour), subject="colour")
    refers = [{"name": "shop.Colour", "subject": "colour", "version": 1}]
    number = registry.add(json.dumps(order), references=refers)
    whole = record([("colour", colour), ("id", "string")])

    values = AvroValues(columns, registry=SchemaRegistry(registry.url))
    value = written(whole, {"colour": "BLUE", "id": "1-2"}, number)
    decoded = values.open().decoded(fetched([value]))

    assert decoded.rows.to_pylist() == [{"colour": "BLUE", "id": "1-2"}]


def test_a_value_that_its_column_cannot_hold_affects_only_its_own_record() -> None:
    columns = pa.schema([("at", pa.timestamp("ns", "UTC")), ("n", pa.int64())])
    schema = record([("at", {"type": "long", "logicalType": "timestamp-millis"}), ("n", "long")])
    values = AvroValues(columns, avro_schema=json.dumps(schema))
    records = [written(schema, {"at": at, "n": n}) for n, at in enumerate([1, 1 << 60, 3])]

    decoded = values.open().decoded(fetched(records))

    assert decoded.rows.column("n").to_pylist() == [0, 2]
    assert said(decoded, 1).startswith("field at does not fit its column")


GOOD_ROW = {"n": 7, "text": "seven", "at": FULL["at"]}


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 30), st.binary(max_size=3))
@example([b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"], 0, b"")
@example([b"\x02\x0e\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"], 3, b"")
def test_each_record_of_arbitrary_bytes_is_a_row_or_a_problem(
    strange: list[bytes], cut: int, tail: bytes
) -> None:
    """Truncated, with extra bytes, or with huge or negative lengths, between good records."""
    values = AvroValues(COLUMNS)
    (good,) = values.encoder("t").encoded(pa.RecordBatch.from_pylist([GOOD_ROW], schema=COLUMNS))
    records = [good, *strange, good[:cut], good + tail, good]

    decoded = values.open().decoded(fetched(records))

    assert decoded.rows.num_rows + len(decoded.problems) == len(records)
    assert not {0, len(records) - 1} & set(decoded.problems)
    assert decoded.rows.slice(0, 1).to_pylist() == [GOOD_ROW]
    assert decoded.rows.slice(decoded.rows.num_rows - 1).to_pylist() == [GOOD_ROW]
    assert (len(records) - 2 in decoded.problems) == bool(tail)
    assert (len(records) - 3 in decoded.problems) == (cut < len(good))
    for number in decoded.problems:
        assert said(decoded, number)
        assert "\n" not in said(decoded, number)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=8))
def test_bytes_outside_the_wire_format_are_rejected_without_a_registry_request(
    value: bytes,
) -> None:
    values = AvroValues(COLUMNS, registry=SchemaRegistry("http://nowhere.invalid"))
    if value[:1] == b"\0" and len(value) >= 5:
        value = b"\1" + value[1:]

    decoded = values.open().decoded(fetched([value]))

    assert list(decoded.problems) == [0]
    assert "schema id" in said(decoded)


@pytest.mark.parametrize("status", [500, 503])
def test_a_failing_registry_is_asked_again_and_no_record_is_lost(
    registry: Registry, status: int
) -> None:
    values = AvroValues(COLUMNS, registry=SchemaRegistry(registry.url))
    number = registry.add(values.written_schema)
    rows = pa.RecordBatch.from_pylist([GOOD_ROW], schema=COLUMNS)
    (record,) = AvroValues(COLUMNS).encoder("t").encoded(rows)
    decoder, registry.status = values.open(), status

    with pytest.raises(Retryable, match=rf"The schema registry .* fails \({status}\)"):
        decoder.decoded(fetched([header_of(number) + record]))
    registry.status = None
    assert decoder.decoded(fetched([header_of(number) + record])).rows.equals(rows)


def test_a_refused_login_is_reported_without_the_password(registry: Registry) -> None:
    security = {"basic.auth.user.info": "ann:hidden-word"}
    place = SchemaRegistry(registry.url, security)
    registry.status = 401

    with pytest.raises(Rejected, match=r"refuses the request \(401 as the test wants\)") as refused:
        AvroValues(COLUMNS, registry=place).open().decoded(fetched([header_of(1) + b"x"]))
    assert "hidden-word" not in f"{refused.value}{place!r}"


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "http://ann:word@registry:8081"]
)
def test_an_invalid_address_or_one_with_a_password_is_refused(url: str) -> None:
    with pytest.raises(Rejected, match="The address of a schema registry") as refused:
        SchemaRegistry(url)
    assert "word@" not in str(refused.value)


def test_a_schema_that_the_registry_rejects_is_reported_before_the_start(
    registry: Registry,
) -> None:
    values = AvroValues(COLUMNS, registry=SchemaRegistry(registry.url))
    values.check_target("new")
    registry.add("{}", subject="orders-value")
    values.check_target("orders")
    registry.refused.add("orders-value")

    with pytest.raises(Rejected, match="does not take the schema of subject orders-value"):
        values.check_target("orders")
    assert registry.subjects == {"orders-value": [1]}, "nothing is registered before the start"


def test_columns_that_differ_from_the_format_are_refused() -> None:
    values = AvroValues(COLUMNS)

    check_columns(values, COLUMNS, "t")
    with pytest.raises(Rejected, match="Column n of type string is of type int64 in the format of"):
        check_columns(values, pa.schema([("n", pa.string())]), "t")
    with pytest.raises(Rejected, match="Column x of type string is not a column of the format of"):
        check_columns(values, pa.schema([("x", pa.string())]), "t")
    with pytest.raises(Rejected, match="The column text of topic t is not in the results"):
        check_columns(values, pa.schema([("n", pa.int64())]), "t")


def test_a_row_that_does_not_fit_the_given_schema_is_refused() -> None:
    schema = record([("n", "long")])
    values = AvroValues(pa.schema([("n", pa.int64())]), avro_schema=json.dumps(schema))
    rows = pa.RecordBatch.from_pylist([{"n": None}], schema=values.schema)

    with pytest.raises(Rejected, match="A row does not fit the Avro schema of subject t-value"):
        values.encoder("t").encoded(rows)


def record(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    named = [{"name": name, "type": type_} for name, type_ in fields]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": named}


def written(schema: dict[str, Any], row: dict[str, Any], number: int | None = None) -> bytes:
    """Encodes the row with fastavro, not with our encoder."""
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
    bytes_ = BytesIO()
    fastavro.schemaless_writer(bytes_, fastavro.parse_schema(plain), row)
    return (b"" if number is None else header_of(number)) + bytes_.getvalue()


def said(decoded: Decoded, number: int = 0) -> str:
    return getattr(decoded.problems[number], "problem", "")


def fetched(values: Sequence[bytes]) -> Fetched:
    numbers = np.arange(len(values), dtype=np.int64)
    return Fetched(numbers, [None] * len(values), list(values), numbers, 0)
