"""Queries that join: q3, q4, q9, q13, q20 and q23."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pipelines.connectors import ArrowRows
from pipelines.stream import Stream, count, sum

from nexmark.columns import AUCTIONS, BIDS, PERSONS, TIME
from nexmark.tables import Columns, Tables, computed, renamed, selected, with_columns

SIDE_KEYS = 10_000
ORDER_BITS = 32
AUCTION_OF_BID = {"date_time": "auction_date_time", "extra": "auction_extra"}


def q3(tables: Tables) -> Stream:
    """The people in three states who sell things of category 10."""
    persons = tables.persons("id", "name", "city", "state")
    near = persons.filter(pc.field("state").isin(["OR", "ID", "CA"]), uid="near")
    names = {"id": "seller", "name": "name", "city": "city", "state": "state"}
    sellers = renamed(near, names, "sellers")
    auctions = tables.auctions("id", "seller", "category")
    wanted = auctions.filter(pc.field("category") == 10, uid="wanted")
    found = wanted.join(sellers, on=["seller"], uid="found")
    return selected(found, ["name", "city", "state", "id"], "who")


def q4(tables: Tables) -> Stream:
    """The average of the highest bids of each category's auctions."""
    auctions = tables.auctions("id", "category", "date_time", "expires")
    names = {"id": "auction", "category": "category", "date_time": "begins", "expires": "expires"}
    sold = renamed(auctions, names, "sold").join(
        tables.bids("auction", "price", "date_time"), on=["auction"], uid="pairs"
    )
    time = pc.field("date_time")
    valid = sold.filter((time >= pc.field("begins")) & (time <= pc.field("expires")), uid="valid")
    prices = selected(valid, ["auction", "category", "price"], "prices")
    of_auctions = prices.reinterpret_as_keyed("auction", uid="of-auctions")
    highest = of_auctions.top_n(1, order_by="price", uid="highest")
    sums = {"total": sum("price"), "auctions": count()}
    totals = highest.key_by("category").aggregate(sums, uid="totals")
    schema = pa.schema([("category", pa.int64()), ("average", pa.int64())])

    def average(batch: pa.RecordBatch) -> Columns:
        return {"average": divided(batch["total"], batch["auctions"])}

    return computed(totals, schema, average, "averages")


def q9(tables: Tables) -> Stream:
    """Each auction with the bid that won it: the highest one, or the earliest of equal ones."""
    auctions = tables.auctions(*AUCTIONS.names)
    sold = renamed(auctions, {"id": "auction", **_same(AUCTIONS.names[1:])}, "sold")
    columns = ["auction", "bidder", "price", "date_time", "extra"]
    names = {**_same(columns), "date_time": "bid_date_time", "extra": "bid_extra"}
    bids = renamed(tables.bids(*columns), names, "offers")
    pairs = sold.join(bids, on=["auction"], uid="pairs")
    time = pc.field("bid_date_time")
    valid = pairs.filter(
        (time >= pc.field("date_time")) & (time <= pc.field("expires")), uid="valid"
    )

    def order(batch: pa.RecordBatch) -> Columns:
        after = pc.subtract(_ms(batch["bid_date_time"]), _ms(batch["date_time"]))
        return {"order": pc.subtract(pc.shift_left(batch["price"], ORDER_BITS), after)}

    ordered = with_columns(valid, {"order": pa.int64()}, order, "ordered")
    of_auctions = ordered.reinterpret_as_keyed("auction", uid="of-auctions")
    winners = of_auctions.top_n(1, order_by="order", uid="winners")
    return selected(winners, [name for name in pairs.schema.names], "winning-bids")


def q13(tables: Tables) -> Stream:
    """Each bid with the value that a side table has for its auction."""
    bids = tables.bids("auction", "bidder", "price", "date_time")

    def key(batch: pa.RecordBatch) -> Columns:
        rest = pc.multiply(pc.divide(batch["auction"], SIDE_KEYS), SIDE_KEYS)
        return {"key": pc.subtract(batch["auction"], rest)}

    keyed = with_columns(bids, {"key": pa.int64()}, key, "keys")
    side = tables.env.source(ArrowRows(side_input(), timestamp_column="since"), uid="side-input")
    found = keyed.temporal_join(side, on=["key"], uid="found")
    return selected(found, ["auction", "bidder", "price", "date_time", "value"], "values")


def q20(tables: Tables) -> Stream:
    """The bids for auctions of category 10, with the auction."""
    auctions = tables.auctions(*AUCTIONS.names)
    wanted = auctions.filter(pc.field("category") == 10, uid="wanted")
    names = {"id": "auction", **_same(AUCTIONS.names[1:]), **AUCTION_OF_BID}
    bids = renamed(tables.bids(*BIDS.names), _bid_names(BIDS.names), "offers")
    return bids.join(renamed(wanted, names, "things"), on=["auction"], uid="found")


def q23(tables: Tables) -> Stream:
    """Each bid of a person who sells, with the person and each of the person's auctions.

    The two small inputs are joined first. In the order of the SQL text, each bid would be kept
    twice, the second time with all columns of its person.
    """
    columns = [name for name in BIDS.names if name not in ("auction", "date_time")]
    bids = renamed(tables.bids(*columns), _bid_names(columns), "offers")
    people = [name for name in PERSONS.names if name != "date_time"]
    names = {**_same(people), "id": "bidder", "extra": "person_extra"}
    persons = renamed(tables.persons(*people), names, "people")
    sold = [name for name in AUCTIONS.names if name != "id"]
    names = {**_same(sold), **AUCTION_OF_BID, "seller": "bidder"}
    auctions = renamed(tables.auctions(*sold), names, "things")
    sellers = persons.join(auctions, on=["bidder"], uid="sellers")
    return bids.join(sellers, on=["bidder"], uid="found")


def side_input() -> pa.Table:
    """Returns a table of 10,000 rows, valid since 1970."""
    keys = range(SIDE_KEYS)
    since = pa.array([datetime(1970, 1, 1, tzinfo=UTC)] * SIDE_KEYS, TIME)
    values = [f"value-{key}" for key in keys]
    return pa.table({"key": pa.array(keys, pa.int64()), "value": values, "since": since})


def divided(total: pa.Array, number: pa.Array) -> pa.Array:
    """Divides without the fraction, as SQL divides whole numbers; null if `number` is 0."""
    return pc.divide(total, pc.if_else(pc.equal(number, 0), None, number))


def _same(names: list[str]) -> dict[str, str]:
    return {name: name for name in names}


def _bid_names(columns: list[str]) -> dict[str, str]:
    new = {"date_time": "bid_date_time", "extra": "bid_extra"}
    return {name: new.get(name, name) for name in columns}


def _ms(times: pa.Array) -> pa.Array:
    return times.cast(pa.int64())
