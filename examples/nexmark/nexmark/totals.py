"""Queries with running totals per day: q15, q16 and q17."""

import pyarrow as pa
import pyarrow.compute as pc
from pipelines.stream import Stream, count, count_distinct, max, min, sum

from nexmark.joins import divided
from nexmark.tables import Columns, Tables, computed, with_columns
from nexmark.times import day, formatted, minute

RANKS = (1, 2, 3)
CHEAP, EXPENSIVE = 10_000, 1_000_000
RANK_TYPES = {f"is_rank{rank}": pa.bool_() for rank in RANKS}


def q15(tables: Tables) -> Stream:
    """The bids, bidders and auctions of each day, in total and by rank of the price."""
    bids = tables.bids("auction", "bidder", "price", "date_time")
    ranked = with_columns(bids, {"day": pa.string(), **RANK_TYPES}, _ranked, "ranked")
    return ranked.key_by("day").aggregate(_distinct_totals(), uid="totals")


def q16(tables: Tables) -> Stream:
    """The same for each channel and day, with the minute of the last bid."""
    bids = tables.bids("auction", "bidder", "price", "channel", "date_time")
    more = {"day": pa.string(), "minutes": pa.int64(), **RANK_TYPES}

    def rank(batch: pa.RecordBatch) -> Columns:
        return {**_ranked(batch), "minutes": minute(batch["date_time"])}

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
    ranked = with_columns(bids, {"day": pa.string(), **RANK_TYPES}, _ranked, "ranked")
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
    of_ranks = {f"rank{rank}_bids": count(where=f"is_rank{rank}") for rank in RANKS}
    return {"total_bids": count(), **of_ranks}


def _distinct_totals() -> dict[str, object]:
    totals = _bid_totals()
    for column in ("bidder", "auction"):
        totals[f"total_{column}s"] = count_distinct(column)
        for rank in RANKS:
            totals[f"rank{rank}_{column}s"] = count_distinct(column, where=f"is_rank{rank}")
    return totals


def _ranked(batch: pa.RecordBatch) -> Columns:
    """Returns the day, and for each rank whether the price has it."""
    price = batch["price"]
    is_cheap, is_expensive = pc.less(price, CHEAP), pc.greater_equal(price, EXPENSIVE)
    return {
        "day": day(batch["date_time"]),
        "is_rank1": is_cheap,
        "is_rank2": pc.invert(pc.or_(is_cheap, is_expensive)),
        "is_rank3": is_expensive,
    }
