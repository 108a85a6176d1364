"""Pipelines that call a real HTTP server: exactly once under kills, event time, failures."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from pipelines.local import RunFailed, run_local
from pipelines.operators.columns import EVENT_TIME
from pipelines.stream import AsyncFunction, Environment, Pipeline, count, tumbling
from pipelines.testing import assert_exactly_once, run_with_kills

ORDERS = pa.schema([("order", pa.int64()), ("at", EVENT_TIME)])
PRICED = pa.schema([("order", pa.int64()), ("at", EVENT_TIME), ("price", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)


class Prices(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        order = int(self.path.removeprefix("/"))
        body = json.dumps({"price": order * 3}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # all requests in flight may connect at once


class Priced(AsyncFunction):
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/"

    async def open(self) -> None:
        self._session = aiohttp.ClientSession()

    async def invoke(self, row: dict[str, Any]) -> dict[str, Any]:
        async with self._session.get(f"{self._url}{row['order']}") as answer:
            return {**row, **await answer.json(content_type=None)}

    async def close(self) -> None:
        await self._session.close()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_change_no_result_of_an_http_service(seed: int, ordered: bool) -> None:
    with served() as port:
        environment = Environment()
        priced = orders(environment).map_async(
            Priced(port), PRICED, uid="priced", capacity=4, ordered=ordered
        )
        priced.collect(uid="prices")
        priced.key_by("order").window(tumbling(seconds=1)).aggregate(
            uid="per-window", orders=count()
        ).collect(uid="windows")

        assert_exactly_once(environment.build(), rows(120), kills=seed)


def test_a_kill_repeats_the_requests_that_were_in_flight() -> None:
    with served() as port:
        environment = Environment()
        orders(environment).map_async(Priced(port), PRICED, uid="priced").collect(uid="out")

        killed = run_with_kills(environment.build(), rows(120), kills=3)

        assert killed.kills
        found = sorted(killed.table("out").column("price").to_pylist())
        assert found == [order * 3 for order in range(120)]


def test_the_end_of_the_input_waits_for_every_result() -> None:
    async def slow(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.001 * (row["order"] % 7))
        return {**row, "price": 1}

    result = run_local(of(slow, ordered=False), parallelism=2)

    assert sorted(row["order"] for row in result.rows("out")) == list(range(50))
    assert sum(row["orders"] for row in result.rows("windows")) == 50


def test_a_failed_request_names_the_offset_of_its_record() -> None:
    async def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["order"] == 17:
            raise ValueError("no such order")
        return {**row, "price": 1}

    with pytest.raises(RunFailed, match=r"(?s)no such order.*in fails") as failed:
        run_local(of(fails))

    assert "offset 17" in str(failed.value)


def of(function: Any, **options: Any) -> Pipeline:
    environment = Environment()
    table = pa.Table.from_pylist(rows(50), schema=ORDERS)
    source = environment.from_arrow(table, uid="orders", timestamp_column="at")
    priced = source.map_async(function, PRICED, uid="priced", **options)
    priced.collect(uid="out")
    priced.key_by("price").window(tumbling(seconds=10)).aggregate(
        uid="per-window", orders=count()
    ).collect(uid="windows")
    return environment.build()


def orders(environment: Environment) -> Any:
    return environment.from_rows([], ORDERS, uid="orders", timestamp_column="at")


def rows(number: int) -> list[dict[str, Any]]:
    return [{"order": n, "at": START + timedelta(seconds=n)} for n in range(number)]


@contextmanager
def served() -> Iterator[int]:
    server = Server(("127.0.0.1", 0), Prices)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
