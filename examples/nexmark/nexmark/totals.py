"""Queries with running totals per day: q15, q16 and q17."""

import pyarrow as pa
import pyarrow.compute as pc
from pipelines.stream import Stream, count, count_distinct, max, min, sum

from nexmark.joins import divided
from nexmark.tables import Columns, Tables, computed, with_columns
from nexmark.times import day, formatted, minute

RANKS = (1, 2, 3)
CHEAP, EXPENSIVE = 10_000, 1_000_000
COUNTED = ("bidder", "auction")
RANK_TYPES = {f"rank{rank}": pa.int64() for rank in RANKS}
COUNTED_TYPES = {f"{column}{rank}": pa.int64() for column in COUNTED for rank in RANKS}


def q15(tables: Tables) -> Stream:
    """Bids, bidders and auctions of each day, in all and by rank of the price."""
    bids = tables.bids("auction", "bidder", "price", "date_time")
    more = {"day": pa.string(), **RANK_TYPES, **COUNTED_TYPES}
    ranked = with_columns(bids, more, lambda batch: {**_day(batch), **_counted(batch)}, "ranked")
    return ranked.key_by("day").aggregate(_distinct_totals(), uid="totals")


def q16(tables: Tables) -> Stream:
    """The same for each channel and day, with the minute of the last bid."""
    bids = tables.bids("auction", "bidder", "price", "channel", "date_time")
    more = {"day": pa.string(), "minutes": pa.int64(), **RANK_TYPES, **COUNTED_TYPES}

    def rank(batch: pa.RecordBatch) -> Columns:
        return {**_day(batch), **_counted(batch), "minutes": minute(batch["date_time"])}

    ranked = with_columns(bids, more, rank, "ranked")
    totals = ranked.key_by("channel", "day").aggregate(
        {"minutes": max("minutes"), **_distinct_totals()}, uid="totals"
    )
    fields = [pa.field("minute", pa.string()) if f.name == "minutes" else f for f in totals.schema]
    return computed(
        totals, pa.schema(fields), lambda batch: {"minute": formatted(batch["minutes"])}, "minutes"
    )


def q17(tables: Tables) -> Stream:
    """The bids and prices of each auction and day."""
    bids = tables.bids("auction", "price", "date_time")
    more = {"day": pa.string(), **RANK_TYPES}
    ranked = with_columns(bids, more, lambda batch: {**_day(batch), **_ranks(batch)}, "ranked")
    totals = ranked.key_by("auction", "day").aggregate(
        {
            **_bid_totals(),
            "min_price": min("price"),
            "max_price": max("price"),
            "sum_price": sum("price"),
        },
        uid="totals",
    )

    def average(batch: pa.RecordBatch) -> Columns:
        return {"avg_price": divided(batch["sum_price"], batch["total_bids"])}

    return with_columns(totals, {"avg_price": pa.int64()}, average, "averages")


def _bid_totals() -> dict[str, object]:
    return {"total_bids": count(), **{f"rank{rank}_bids": sum(f"rank{rank}") for rank in RANKS}}


def _distinct_totals() -> dict[str, object]:
    totals = _bid_totals()
    for column in COUNTED:
        totals[f"total_{column}s"] = count_distinct(column)
        for rank in RANKS:
            totals[f"rank{rank}_{column}s"] = count_distinct(f"{column}{rank}")
    return totals


def _day(batch: pa.RecordBatch) -> Columns:
    return {"day": day(batch["date_time"])}


def _has_rank(batch: pa.RecordBatch) -> dict[int, pa.Array]:
    price = batch["price"]
    is_cheap, is_expensive = pc.less(price, CHEAP), pc.greater_equal(price, EXPENSIVE)
    return {1: is_cheap, 2: pc.invert(pc.or_(is_cheap, is_expensive)), 3: is_expensive}


def _ranks(batch: pa.RecordBatch) -> Columns:
    """1 in the column of the rank that the price has, 0 in the others."""
    return {f"rank{rank}": has.cast(pa.int64()) for rank, has in _has_rank(batch).items()}


def _counted(batch: pa.RecordBatch) -> Columns:
    """The ranks, and each counted column by rank: null where the price has another one."""
    by_rank = {
        f"{column}{rank}": pc.if_else(has, batch[column], None)
        for column in COUNTED
        for rank, has in _has_rank(batch).items()
    }
    return {**_ranks(batch), **by_rank}
