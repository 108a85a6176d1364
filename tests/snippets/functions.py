"""Streams and names that the page's fragments use, and a run of what they declare."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors import ArrowRows
from pipelines.local import run_local
from pipelines.stream import (
    LATE,
    BatchProcessFunction,
    Environment,
    KeyedProcessFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    bounded_out_of_orderness,
    count,
    sum,
    tumbling,
)

__all__ = [
    "LATE",
    "BatchProcessFunction",
    "KeyedProcessFunction",
    "ReducingStateDescriptor",
    "ValueStateDescriptor",
    "bounded_out_of_orderness",
    "count",
    "pc",
    "sum",
    "timedelta",
    "tumbling",
]

TOTALS = pa.schema([("user", pa.string()), ("total", pa.int64())])
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [
    {"user": "ab"[number % 2], "amount": number, "at": BEGIN + timedelta(minutes=number)}
    for number in range(100)
]

env = Environment()
source = ArrowRows(pa.Table.from_pylist(ROWS), timestamp_column="at")
events = env.from_rows(ROWS, uid="events", timestamp_column="at")

key, row = "a", {"n": 1}


class Rules(dict[str, list[int]]):
    put = dict.__setitem__


self = SimpleNamespace(rules=Rules())


def check(names: dict[str, Any]) -> None:
    assert self.rules == {"a": [1]}
    names["numbers"].collect(uid="numbers-read")
    names["totals"].collect(uid="windows")
    names["late"].collect(uid="too-late")
    for uid, function in ("by-batch", names["Totals"]()), ("by-row", names["Alarm"]()):
        events.key_by("user").process(function, TOTALS, uid=uid).collect(uid=f"{uid}-rows")

    result = run_local(env.build())

    assert result.table("numbers-read").num_rows == 100
    assert {row["visits"] for row in result.rows("windows")} == {20, 30}
    assert max(row["total"] for row in result.rows("by-batch-rows")) == 1 + 99 * 25 + 24
