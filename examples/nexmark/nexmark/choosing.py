"""Queries that keep some rows of each key, as changelogs: q18 and q19."""

from pipelines.stream import Stream

from nexmark.columns import BIDS
from nexmark.tables import Tables


def q18(tables: Tables) -> Stream:
    """The last bid of each person for each auction."""
    bids = tables.bids(*BIDS.names)
    return bids.key_by("bidder", "auction").deduplicate(
        keep="last", order_by="date_time", uid="last"
    )


def q19(tables: Tables) -> Stream:
    """The ten highest bids of each auction, with their ranks."""
    bids = tables.bids(*BIDS.names)
    return bids.key_by("auction").top_n(10, order_by="price", rank="rank_number", uid="highest")
