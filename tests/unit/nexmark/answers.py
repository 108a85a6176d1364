"""DuckDB's answers to the Nexmark queries; DuckDB shares no code with the engine.

The queries are Nexmark's own, in DuckDB's dialect. Sliding windows and sessions are written by
hand. If SQL leaves open which of equal rows it keeps (q18, q19), the answer has only the columns
that SQL decides. The test looks up the whole rows among the bids.
"""

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from nexmark.generator import AUCTION, BID, PERSON, Kind, Model

VALID = "B.date_time BETWEEN A.date_time AND A.expires"
TEN_S = "INTERVAL 10 SECOND"
TUMBLED = "time_bucket(INTERVAL 10 SECOND, date_time)"
DAY = "strftime(date_time, '%Y-%m-%d')"
RANKS = {1: "price < 10000", 2: "price >= 10000 AND price < 1000000", 3: "price >= 1000000"}
BIDS = ", ".join(
    ["count(*) AS total_bids"]
    + [f"count(*) FILTER (WHERE {rank}) AS rank{n}_bids" for n, rank in RANKS.items()]
)
DISTINCT = ", ".join(
    each
    for column in ("bidder", "auction")
    for each in [
        f"count(DISTINCT {column}) AS total_{column}s",
        *(
            f"count(DISTINCT {column}) FILTER (WHERE {rank}) AS rank{n}_{column}s"
            for n, rank in RANKS.items()
        ),
    ]
)

SQL = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": """SELECT auction, bidder, (0.908 * price)::DECIMAL(23, 3) AS price, date_time, extra
        FROM bid""",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, sum(final)::BIGINT // count(*) AS average FROM (
            SELECT A.id, A.category, max(B.price) AS final FROM auction A
            JOIN bid B ON A.id = B.auction WHERE {VALID} GROUP BY A.id, A.category)
        GROUP BY category""",
    "q5": """WITH counts AS (
            SELECT auction, start, count(*) AS num FROM (
                SELECT auction, unnest(generate_series(
                    time_bucket(INTERVAL 2 SECOND, date_time) - INTERVAL 8 SECOND,
                    time_bucket(INTERVAL 2 SECOND, date_time), INTERVAL 2 SECOND)) AS start
                FROM bid)
            GROUP BY auction, start)
        SELECT auction, num FROM counts
        JOIN (SELECT start, max(num) AS most FROM counts GROUP BY start) USING (start)
        WHERE num = most""",
    "q7": f"""SELECT B.auction, B.price, B.bidder, B.date_time, B.extra FROM bid B JOIN (
            SELECT max(price) AS price, {TUMBLED} + {TEN_S} AS ends FROM bid GROUP BY ends) M
        ON B.price = M.price WHERE B.date_time BETWEEN M.ends - {TEN_S} AND M.ends""",
    "q8": f"""SELECT P.id, P.name, P.start AS stime
        FROM (SELECT DISTINCT id, name, {TUMBLED} AS start FROM person) P
        JOIN (SELECT DISTINCT seller, {TUMBLED} AS start FROM auction) A
        ON P.id = A.seller AND P.start = A.start""",
    "q9": f"""SELECT * FROM (SELECT A.id AS auction, A.* EXCLUDE (id), B.bidder, B.price,
            B.date_time AS bid_date_time, B.extra AS bid_extra
            FROM auction A JOIN bid B ON A.id = B.auction WHERE {VALID}
            QUALIFY row_number() OVER (
                PARTITION BY A.id ORDER BY B.price DESC, B.date_time) = 1)""",
    "q10": f"""SELECT auction, bidder, price, date_time, extra, {DAY} AS dt,
        strftime(date_time, '%H:%M') AS hm FROM bid""",
    "q11": f"""SELECT bidder, count(*) AS bid_count, min(date_time) AS window_start,
            max(date_time) + {TEN_S} AS window_end FROM (
                SELECT bidder, date_time, sum(is_new::INT) OVER (
                    PARTITION BY bidder ORDER BY date_time
                    RANGE UNBOUNDED PRECEDING) AS number
                FROM (SELECT bidder, date_time, coalesce(date_time - lag(date_time) OVER (
                    PARTITION BY bidder ORDER BY date_time) >= {TEN_S}, TRUE) AS is_new FROM bid))
        GROUP BY bidder, number""",
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q13": """SELECT auction, bidder, price, date_time, 'value-' || (auction % 10000) AS value
        FROM bid""",
    "q14": """SELECT auction, bidder, (0.908 * price)::DECIMAL(23, 3) AS price,
            CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
                ELSE 'otherTime' END AS bid_time_type,
            date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {DAY} AS day, {BIDS}, {DISTINCT} FROM bid GROUP BY day",
    "q16": f"""SELECT channel, {DAY} AS day, max(strftime(date_time, '%H:%M')) AS minute,
        {BIDS}, {DISTINCT} FROM bid GROUP BY channel, day""",
    "q17": f"""SELECT auction, {DAY} AS day, {BIDS}, min(price) AS min_price,
        max(price) AS max_price, sum(price)::BIGINT // count(*) AS avg_price,
        sum(price)::BIGINT AS sum_price FROM bid GROUP BY auction, day""",
    "q18": "SELECT bidder, auction, max(date_time) AS date_time FROM bid GROUP BY bidder, auction",
    "q19": """SELECT auction, price, row_number() OVER (
            PARTITION BY auction ORDER BY price DESC) AS rank_number
        FROM bid QUALIFY rank_number <= 10""",
    "q20": """SELECT B.auction, bidder, price, channel, url, B.date_time AS bid_date_time,
        B.extra AS bid_extra, A.* EXCLUDE (id, date_time, extra),
        A.date_time AS auction_date_time, A.extra AS auction_extra
        FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, CASE lower(channel)
            WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
            WHEN 'baidu' THEN '3' ELSE split_part(url, '&channel_id=', 2) END AS channel_id
        FROM bid WHERE channel_id <> ''""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid""",
    "q23": """SELECT bidder, price, channel, url, B.extra AS bid_extra, P.name, P.email_address,
        P.credit_card, P.city, P.state, P.extra AS person_extra, A.* EXCLUDE (id, seller,
        date_time, extra), A.date_time AS auction_date_time, A.extra AS auction_extra
        FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder""",
}

NO_ZONE = pa.timestamp("us")
UNDECIDED = {"q18", "q19"}
"""These keep whole rows, and SQL does not decide which of those with equal times or prices."""


class Answers:
    """The answers for the given events."""

    def __init__(self, persons: pa.Table, auctions: pa.Table, bids: pa.Table) -> None:
        self._connection = duckdb.connect(config={"threads": 1})
        for name, table in (("person", persons), ("auction", auctions), ("bid", bids)):
            self._connection.register(name, without_zone(table))

    @classmethod
    def about(cls, model: Model, count: int) -> "Answers":
        """Returns the answers for the first `count` events of the model."""
        return cls(*(events_of(kind, model, count) for kind in (PERSON, AUCTION, BID)))

    def of(self, query: str) -> pa.Table:
        return self._connection.sql(SQL[query]).to_arrow_table()

    def difference(self, query: str, result: pa.Table) -> list[tuple[Any, ...]]:
        """Returns at most ten rows that are not equally often in the result and the answer.

        Compares the columns of the answer. For q18 and q19, also returns at most ten rows of the
        result that are no bids.
        """
        self._connection.register("result", without_zone(result))
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE answer AS {SQL[query]}")
        answer = self._connection.table("answer")
        columns = ", ".join(f'"{name}"' for name in answer.columns)
        given = f"SELECT {columns} FROM result"
        found = []
        if self._digest("answer", columns) != self._digest("result", columns):
            found = self._connection.sql(
                f"SELECT 'missing', * FROM (FROM answer EXCEPT ALL {given}) UNION ALL"
                f" SELECT 'surplus', * FROM ({given} EXCEPT ALL FROM answer) LIMIT 10"
            ).fetchall()
        if query in UNDECIDED:
            whole = "auction, bidder, price, channel, url, date_time, extra"
            found += self._connection.sql(
                f"SELECT 'no bid', * FROM (SELECT {whole} FROM result EXCEPT ALL"
                f" SELECT {whole} FROM bid) LIMIT 10"
            ).fetchall()
        return found

    def _digest(self, table: str, columns: str) -> tuple[int, int]:
        """Returns the row count and a digest, equal for equal rows in any order.

        Two digests of 64 bits are not equal by chance. Comparing digests of millions of wide rows
        takes a quarter of the time.
        """
        rows = f"SELECT count(*), sum(hash({columns})::HUGEINT) FROM {table}"
        count, digest = self._connection.sql(rows).fetchall()[0]
        return count, digest


def events_of(kind: Kind, model: Model, count: int) -> pa.Table:
    """Returns the events of one kind among the first `count` events."""
    positions = np.arange(count // 50 * kind.count)
    return pa.Table.from_batches([kind.made(model, kind.numbers(positions))])


def without_zone(table: pa.Table) -> pa.Table:
    """DuckDB needs an extension for times with a zone; all times here are in UTC."""
    types = [(f.name, NO_ZONE if pa.types.is_timestamp(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(types))


def decided(query: str, result: pa.Table, newest_by: tuple[str, ...]) -> pa.Table:
    """Returns the rows left of a result, without what is open: the clock decides q12's windows."""
    left = left_over(result, newest_by)
    if query != "q12":
        return left
    sums = left.group_by("bidder").aggregate([("bid_count", "sum")])
    return sums.rename_columns(["bidder", "bid_count"])


def left_over(result: pa.Table, newest_by: tuple[str, ...]) -> pa.Table:
    """Returns the rows left of a result.

    Of a changelog, these are the rows that were not retracted. Of running totals, they are the
    newest row of each key.
    """
    if "row_kind" in result.column_names:
        return _not_taken_back(result)
    if not newest_by:
        return result
    keys = zip(*(result[name].to_pylist() for name in newest_by), strict=True)
    newest = {key: number for number, key in enumerate(keys)}
    return result.take(sorted(newest.values()))


def _not_taken_back(result: pa.Table) -> pa.Table:
    rows = result.drop_columns(["row_kind"])
    connection = duckdb.connect(config={"threads": 1})
    connection.register("changes", without_zone(result))
    names = ", ".join(f'"{name}"' for name in rows.column_names)
    counts = connection.sql(
        f"SELECT {names}, sum(CASE row_kind WHEN '+I' THEN 1 ELSE -1 END)::INT AS times"
        f" FROM changes GROUP BY {names} HAVING times <> 0"
    ).to_arrow_table()
    times = Counter(counts["times"].to_pylist())
    if set(times) - set(range(1, 1_000)):
        raise ValueError(f"rows were taken back that were not there: {times}")
    left = connection.sql(
        f"SELECT {names} FROM (SELECT * FROM counts), range(1000) r(n) WHERE n < times"
    ).to_arrow_table()
    return left.cast(rows.schema)
