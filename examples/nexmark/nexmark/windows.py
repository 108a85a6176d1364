"""Queries over windows: q5, q7, q8, q11 and q12."""

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pipelines.stream import Stream, count, max, processing_time, session, sliding, tumbling

from nexmark.columns import TIME
from nexmark.tables import Columns, Tables, renamed, selected, with_columns

TEN_SECONDS, TWO_SECONDS = timedelta(seconds=10), timedelta(seconds=2)


def q5(tables: Tables) -> Stream:
    """The auctions with the most bids in the last ten seconds, every two seconds."""
    bids = tables.bids("auction", "date_time")
    windows = bids.key_by("auction").window(sliding(TEN_SECONDS, every=TWO_SECONDS))
    counts = windows.aggregate(num=count(), uid="counts")
    schema = pa.schema([("auction", pa.int64()), ("num", pa.int64())])

    def busiest(window: object, rows: pa.RecordBatch) -> pa.RecordBatch:
        most = rows.filter(pc.equal(rows["num"], pc.max(rows["num"])))
        return most.select(schema.names)

    # A window ends every two seconds, so each window of that length holds the counts of just one.
    return counts.window_all(tumbling(TWO_SECONDS)).apply(busiest, schema, uid="busiest")


def q7(tables: Tables) -> Stream:
    """The bids with the highest price in each ten seconds.

    As in SQL, a bid at the very end of a window with the same price is one of them.
    """
    bids = tables.bids("auction", "bidder", "price", "date_time", "extra")
    highest = bids.window_all(tumbling(TEN_SECONDS)).aggregate(price=max("price"), uid="highest")

    def end(batch: pa.RecordBatch) -> Columns:
        return {"window_end": pc.add(batch["window_start"], pa.scalar(TEN_SECONDS)).cast(TIME)}

    ends = with_columns(highest.parallelism(1), {"window_end": TIME}, end, "ends").parallelism(1)
    timed = ends.assign_timestamps("window_end", uid="highest-by-end").parallelism(1)
    won = bids.interval_join(
        timed, on=["price"], lower=timedelta(0), upper=TEN_SECONDS, uid="winners"
    )
    return selected(won, ["auction", "price", "bidder", "date_time", "extra"], "winning-bids")


def q8(tables: Tables) -> Stream:
    """People who sold something within the ten seconds in which they came."""
    persons = tables.persons("id", "name", "date_time")
    came = persons.key_by("id", "name").window(tumbling(TEN_SECONDS))
    people = came.aggregate(events=count(), uid="people")
    auctions = tables.auctions("seller", "date_time")
    sold = auctions.key_by("seller").window(tumbling(TEN_SECONDS))
    sellers = sold.aggregate(events=count(), uid="sellers-counted")
    found = people.join(
        renamed(sellers, {"seller": "id", "window_start": "window_start"}, "sellers"),
        on=["id"],
        window=tumbling(TEN_SECONDS),
        suffixes=("", "_of_seller"),
        uid="new-sellers",
    )
    names = {"id": "id", "name": "name", "window_start": "stime"}
    return renamed(found, names, "found")


def q11(tables: Tables) -> Stream:
    """How often each person bids without a pause of ten seconds."""
    bids = tables.bids("bidder", "date_time")
    windows = bids.key_by("bidder").window(session(TEN_SECONDS))
    return windows.aggregate(bid_count=count(), uid="sessions")


def q12(tables: Tables) -> Stream:
    """How often each person bids within ten seconds of the clock."""
    bids = tables.bids("bidder")
    windows = bids.key_by("bidder").window(processing_time(tumbling(TEN_SECONDS)))
    return windows.aggregate(bid_count=count(), uid="counts")
