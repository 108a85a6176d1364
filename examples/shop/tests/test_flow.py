"""The whole pipeline: its results, and that kills do not change them."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pipelines.local import run_local
from pipelines.testing import OperatorHarness, assert_exactly_once, run_with_kills
from redis import Redis
from sqlalchemy import create_engine, text

from rows import BEGIN, RATES, Row, after, order
from shop.flow import shop

ORDERS = [order(number) for number in range(0, 180, 5)]
"""A few orders that cover every minute, customer, product and currency. Each attempt asks the
customer service about each order again, and these requests take most of the time of a test."""

TWICE = sorted([*ORDERS, *ORDERS[::7]], key=lambda row: row["at"])
"""The checkout sends some of them twice."""


@pytest.mark.parametrize("seed", range(2))
def test_kills_change_nothing(parameters: dict[str, str], seed: int) -> None:
    assert_exactly_once(shop, {"orders": TWICE, "rates": RATES}, kills=seed, parameters=parameters)


def test_every_order_counts_once_at_the_rate_of_its_time(parameters: dict[str, str]) -> None:
    run = run_with_kills(shop, {"orders": TWICE, "rates": RATES}, kills=5, parameters=parameters)

    found = {
        (row["country"], row["window_start"]): (row["orders"], row["euro_cents"])
        for row in run.table("country-rows").to_pylist()
    }
    assert found == {key: (len(cents), sum(cents)) for key, cents in in_euros(ORDERS).items()}


def test_a_late_order_goes_to_a_side_output(parameters: dict[str, str]) -> None:
    harness = OperatorHarness(shop.build(parameters), "products")
    harness.push([order(1)])
    harness.watermark(BEGIN + timedelta(minutes=1))
    harness.push([order(2)])

    assert [row["orders"] for row in harness.output()] == [1]
    assert harness.side_output("late") == [order(2)]


def test_a_run_writes_its_rows_to_postgresql_and_to_files(
    parameters: dict[str, str],
    ftdash_redis: str,
    ftdash_postgres: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_REDIS", ftdash_redis)
    monkeypatch.setenv("SHOP_DATABASE", ftdash_postgres)
    with Redis.from_url(ftdash_redis) as client:
        for row in ORDERS:
            client.xadd("orders", row | {"at": row["at"].isoformat()})
    lines = [json.dumps(row | {"since": row["since"].isoformat()}) + "\n" for row in RATES]
    (Path(parameters["rates"]) / "0.jsonl").write_text("".join(lines))

    run_local(shop, parameters=parameters | {"fraud_limit": "3000"})

    with create_engine(ftdash_postgres).connect() as connection:
        rows = connection.execute(text("select sum(orders) from countries")).scalar_one()
    assert rows == len(ORDERS)
    output = Path(parameters["output"])
    products = pq.read_table(output / "products").to_pylist()
    per_product = Counter({row["product"]: 0 for row in ORDERS})
    for row in products:
        per_product[row["product"]] += row["orders"]
    assert per_product == Counter(row["product"] for row in ORDERS)
    assert pq.read_table(output / "alarms").num_rows > 0


def in_euros(orders: list[Row]) -> dict[tuple[str, object], list[int]]:
    """Returns {(country, window): euro cents}, computed without the engine."""
    found: dict[tuple[str, object], list[int]] = {}
    for row in orders:
        rate = 1_000 if row["currency"] == "EUR" else 900 if row["at"] < after(minutes=2) else 800
        key = row["customer"][:2].upper(), row["at"].replace(second=0)
        found.setdefault(key, []).append(row["cents"] * rate // 1_000)
    return found
