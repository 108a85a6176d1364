"""The pipeline: orders in euros, per country and product, with alarms for fraud."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import httpx
import pyarrow as pa
import pyarrow.compute as pc
from pipelines.connectors import (
    ExactlyOnceFiles,
    PostgresInsert,
    RedisStreams,
    json_lines_directory,
)
from pipelines.stream import (
    LATE,
    Environment,
    Secret,
    Stream,
    bounded_out_of_orderness,
    count,
    flow,
    sum,
    tumbling,
)

from shop.columns import LOCATED, ORDERS, PRICED, RATES
from shop.customers import Located
from shop.fraud import ALARMS, Fraud

OUT_OF_ORDER = timedelta(seconds=5)
RATES_AHEAD = timedelta(days=1)
"""A rate is published at most this long before it applies, so rates may not advance event time."""

LOOK_EVERY = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    redis: Annotated[Secret, "address of the Redis server that has the orders"]
    rates: Annotated[Path, "directory of the exchange rates, in files of JSON lines"]
    customers: Annotated[str, "address of the customer service"]
    database: Annotated[Secret, "address of the PostgreSQL database"]
    output: Annotated[Path, "directory of the Parquet files"]
    patience: Annotated[timedelta, "how long an answer about a customer may take"] = timedelta(
        seconds=30
    )
    window: Annotated[timedelta, "length of a window"] = timedelta(minutes=1)
    fraud_limit: Annotated[int, "euro cents a minute; above them there is an alarm"] = 100_000
    follow: Annotated[bool, "wait for more orders, instead of ending with those there are"] = False


@flow
def shop(env: Environment, parameters: Parameters) -> None:
    """Sums orders in euros per country and product, and raises alarms for fraud."""
    window = tumbling(milliseconds=parameters.window // timedelta(milliseconds=1))
    orders = read_orders(env, parameters)
    located = in_euros(orders, env, parameters).map_async(
        Located(parameters.customers),
        LOCATED,
        uid="located",
        ordered=False,
        timeout=parameters.patience,
        retries=3,
        retry_on=(httpx.HTTPError,),
    )

    products = orders.key_by("product").window(window).aggregate(orders=count(), uid="products")
    products.sink(files(parameters, "products"), uid="product-files")
    products.side_output(LATE, uid="late").sink(files(parameters, "late"), uid="late-files")

    countries = (
        located.key_by("country")
        .window(window)
        .aggregate(orders=count(), euro_cents=sum("euro_cents"), uid="countries")
    )
    database = parameters.database.reveal()
    countries.sink(PostgresInsert(database, "countries", pipeline="shop"), uid="country-rows")

    alarms = located.key_by("customer").process(Fraud(parameters.fraud_limit), ALARMS, uid="fraud")
    alarms.sink(files(parameters, "alarms"), uid="alarm-files")


def read_orders(env: Environment, parameters: Parameters) -> Stream:
    """Reads each order once, although the checkout sends some of them twice."""
    received = env.source(
        RedisStreams(
            parameters.redis.reveal(),
            ("orders",),
            schema=ORDERS,
            timestamp_column="at",
            is_bounded=not parameters.follow,
        ),
        uid="orders",
        watermarks=bounded_out_of_orderness(OUT_OF_ORDER),
    )
    return received.key_by("order").deduplicate(uid="once")


def in_euros(orders: Stream, env: Environment, parameters: Parameters) -> Stream:
    """Converts each order at the rate of its time."""
    rates = env.source(
        json_lines_directory(
            parameters.rates,
            schema=RATES,
            timestamp_column="since",
            look_every=LOOK_EVERY if parameters.follow else None,
        ),
        uid="rates",
        watermarks=bounded_out_of_orderness(RATES_AHEAD),
    )
    rated = orders.temporal_join(rates, on=["currency"], uid="rated")
    rated.side_output("late_left", uid="unrated").sink(
        files(parameters, "unrated"), uid="unrated-files"
    )
    return rated.map_batches(priced, PRICED, uid="priced")


def priced(batch: pa.RecordBatch) -> pa.RecordBatch:
    euro_cents = pc.divide(pc.multiply(batch["cents"], batch["per_mille"]), 1_000)
    columns = [batch["order"], batch["customer"], batch["product"], euro_cents, batch["at"]]
    return pa.RecordBatch.from_arrays(columns, schema=PRICED)


def files(parameters: Parameters, name: str) -> ExactlyOnceFiles:
    return ExactlyOnceFiles(parameters.output / name, pipeline="shop")
