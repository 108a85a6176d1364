"""Streams and names for the fragments of the page, and a run of what they declare."""

import builtins
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors import ArrowRows, CsvFiles
from pipelines.local import run_local
from pipelines.stream import (
    LATE,
    AsyncFunction,
    BatchProcessFunction,
    Environment,
    KeyedProcessFunction,
    ReducingStateDescriptor,
    Trigger,
    TriggerResult,
    ValueStateDescriptor,
    bounded_out_of_orderness,
    continuous_event_time,
    count,
    processing_time,
    sliding,
    sum,
    tumbling,
)

__all__ = [
    "LATE",
    "UTC",
    "AsyncFunction",
    "BatchProcessFunction",
    "CsvFiles",
    "KeyedProcessFunction",
    "ReducingStateDescriptor",
    "Trigger",
    "TriggerResult",
    "ValueStateDescriptor",
    "aiohttp",
    "bounded_out_of_orderness",
    "continuous_event_time",
    "count",
    "datetime",
    "np",
    "pc",
    "processing_time",
    "sliding",
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

LINES = pa.schema([("user", pa.string()), ("at", pa.string())])
VISITS = pa.schema([("user", pa.string()), ("at", pa.timestamp("s"))])
Path("visits").mkdir()
Path("visits/lines.csv").write_text("a,2026-01-01 00:00:01\nb,2026-01-01 01:00:02\n")

RATED = pa.schema([*events.schema, ("rate", pa.int64())])


class Rates(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"rate": 3}')

    def log_message(self, format: str, *args: object) -> None:
        pass


class Service(ThreadingHTTPServer):
    request_queue_size = 128  # a hundred calls come at once; refused ones would be late


service = Service(("127.0.0.1", 0), Rates)
URL = f"http://127.0.0.1:{service.server_address[1]}"
threading.Thread(target=service.serve_forever, daemon=True).start()

key, row = "a", {"n": 1}


class Rules(dict[str, list[int]]):
    put = dict.__setitem__


self = SimpleNamespace(rules=Rules())


def check(names: dict[str, Any]) -> None:
    assert self.rules == {"a": [1]}
    names["rated"].collect(uid="rated-rows")
    names["numbers"].collect(uid="numbers-read")
    names["totals"].collect(uid="windows")
    names["late"].collect(uid="too-late")
    names["per_minute"].collect(uid="by-clock")
    names["overall"].collect(uid="of-all")
    names["moving"].collect(uid="moving-rows")
    names["so_far"].collect(uid="so-far-rows")
    names["own"].collect(uid="own-rows")
    hourly = names["visits"].key_by("user").window(tumbling(hours=1))
    hourly.aggregate(n=count(), uid="hourly").collect(uid="visits-read")
    for uid, function in ("by-batch", names["Totals"]()), ("by-row", names["Alarm"]()):
        events.key_by("user").process(function, TOTALS, uid=uid).collect(uid=f"{uid}-rows")

    result = run_local(env.build())

    service.shutdown()
    service.server_close()
    assert {row["rate"] for row in result.rows("rated-rows")} == {3}
    assert result.table("numbers-read").num_rows == 100
    assert [row["user"] for row in result.rows("visits-read")] == ["a", "b"]
    assert builtins.sum(row["visits"] for row in result.rows("by-clock")) == 100
    assert max(row["visits"] for row in result.rows("of-all")) == 60
    assert {row["visits"] for row in result.rows("windows")} == {20, 30}
    assert result.table("moving-rows").num_rows == 10
    for uid in "so-far-rows", "own-rows":
        assert max(row["visits"] for row in result.rows(uid)) == 50
    assert max(row["total"] for row in result.rows("by-batch-rows")) == 1 + 99 * 25 + 24
