"""Queries that look at one bid at a time: q0, q1, q2, q10, q14, q21 and q22."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from pipelines.stream import Stream

from nexmark.columns import TIME
from nexmark.tables import Columns, Tables, computed
from nexmark.times import day, formatted, hour, minute

EUROS_PER_DOLLAR = Decimal("0.908")
EUROS = pa.decimal128(23, 3)
CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
BID = (("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()))


def q0(tables: Tables) -> Stream:
    """Every bid, unchanged."""
    return tables.bids("auction", "bidder", "price", "date_time", "extra")


def q1(tables: Tables) -> Stream:
    """The price of each bid in euros."""
    bids = tables.bids("auction", "bidder", "price", "date_time", "extra")
    schema = bids.schema.set(2, pa.field("price", EUROS))
    return computed(bids, schema, lambda batch: {"price": in_euros(batch["price"])}, "euros")


def q2(tables: Tables) -> Stream:
    """The bids for some auctions."""
    auction = pc.field("auction")
    bids = tables.bids("auction", "price")
    return bids.filter(auction - pc.divide(auction, 123) * 123 == 0, uid="some")


def q10(tables: Tables) -> Stream:
    """Each bid with its day and minute, which can serve to partition files."""
    bids = tables.bids("auction", "bidder", "price", "date_time", "extra")
    schema = bids.schema.append(pa.field("dt", pa.string())).append(pa.field("hm", pa.string()))

    def place(batch: pa.RecordBatch) -> Columns:
        return {"dt": day(batch["date_time"]), "hm": formatted(minute(batch["date_time"]))}

    return computed(bids, schema, place, "places")


def q14(tables: Tables) -> Stream:
    """Expensive bids, with the time of day, and with the number of `c` in their text."""
    bids = tables.bids("auction", "bidder", "price", "date_time", "extra")
    milli_euros = pc.field("price") * 908
    expensive = bids.filter(
        (milli_euros > 1_000_000_000) & (milli_euros < 50_000_000_000), uid="expensive"
    )
    schema = pa.schema(
        [
            *BID[:2],
            ("price", EUROS),
            ("bid_time_type", pa.string()),
            ("date_time", TIME),
            ("extra", pa.string()),
            ("c_counts", pa.int64()),
        ]
    )

    def describe(batch: pa.RecordBatch) -> Columns:
        return {
            "price": in_euros(batch["price"]),
            "bid_time_type": _time_of_day(hour(batch["date_time"])),
            "c_counts": pc.count_substring(batch["extra"], "c").cast(pa.int64()),
        }

    return computed(expensive, schema, describe, "described")


def q21(tables: Tables) -> Stream:
    """The bids whose channel has an id, with that id."""
    bids = tables.bids("auction", "bidder", "price", "channel", "url")
    schema = pa.schema([*BID, ("channel", pa.string()), ("channel_id", pa.string())])
    known = computed(bids, schema, lambda batch: {"channel_id": _channel_ids(batch)}, "ids")
    return known.filter(pc.field("channel_id").is_valid(), uid="known")


def q22(tables: Tables) -> Stream:
    """Each bid with the directories of its address."""
    bids = tables.bids("auction", "bidder", "price", "channel", "url")
    names = ("dir1", "dir2", "dir3")
    schema = pa.schema([*BID, ("channel", pa.string()), *((name, pa.string()) for name in names)])

    def split(batch: pa.RecordBatch) -> Columns:
        parts = pc.split_pattern(batch["url"], "/")
        return {name: pc.list_element(parts, 3 + level) for level, name in enumerate(names)}

    return computed(bids, schema, split, "directories")


def in_euros(dollars: pa.Array) -> pa.Array:
    return pc.multiply(dollars.cast(pa.decimal128(19, 0)), pa.scalar(EUROS_PER_DOLLAR)).cast(EUROS)


def _time_of_day(hours: pa.Array) -> pa.Array:
    is_day = pc.and_(pc.greater_equal(hours, 8), pc.less_equal(hours, 18))
    is_night = pc.or_(pc.less_equal(hours, 6), pc.greater_equal(hours, 20))
    return pc.if_else(is_day, "dayTime", pc.if_else(is_night, "nightTime", "otherTime"))


def _channel_ids(batch: pa.RecordBatch) -> pa.Array:
    """Returns the number of a known channel, or else the id in the address, or null."""
    number = pc.index_in(pc.utf8_lower(batch["channel"]), pa.array(list(CHANNEL_IDS)))
    is_unknown = number.is_null()
    found = pc.extract_regex(batch["url"].filter(is_unknown), r"(?:&|^)channel_id=(?P<id>[^&]*)")
    known = pa.array(list(CHANNEL_IDS.values())).take(number)
    return pc.replace_with_mask(known, is_unknown, pc.struct_field(found, "id"))
