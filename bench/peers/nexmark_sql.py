"""Nexmark in Flink SQL 2.3, after the public definition (nexmark/nexmark on GitHub).

Four queries differ, because they use Flink alone, without the definition's additions. q12's window
uses `PROCTIME()`. q13's side table is a versioned one, because the file connector answers no
look-ups. q14 counts letters with REPLACE instead of a custom function. q10 writes no directories.
"""

KINDS = {
    "person": """id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING,
        state STRING, date_time TIMESTAMP(3), extra STRING""",
    "auction": """id BIGINT, item_name STRING, description STRING, initial_bid BIGINT,
        reserve BIGINT, date_time TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT,
        category BIGINT, extra STRING""",
    "bid": """auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
        date_time TIMESTAMP(3), extra STRING, p_time AS PROCTIME()""",
}
SIDE = """key BIGINT, `value` STRING, since TIMESTAMP(3), WATERMARK FOR since AS since,
    PRIMARY KEY (key) NOT ENFORCED"""

_RANKS = {1: "price < 10000", 2: "price >= 10000 AND price < 1000000", 3: "price >= 1000000"}
_BIDS = ", ".join(
    [
        "count(*) AS total_bids",
        *(f"count(*) FILTER (WHERE {rank}) AS rank{n}_bids" for n, rank in _RANKS.items()),
    ]
)
_DISTINCT = ", ".join(
    each
    for column in ("bidder", "auction")
    for each in (
        f"count(DISTINCT {column}) AS total_{column}s",
        *(
            f"count(DISTINCT {column}) FILTER (WHERE {rank}) AS rank{n}_{column}s"
            for n, rank in _RANKS.items()
        ),
    )
)
_DAY = "DATE_FORMAT(date_time, 'yyyy-MM-dd')"
_BETWEEN = "B.date_time BETWEEN A.date_time AND A.expires"
_AUCTION = "A.item_name, A.description, A.initial_bid, A.reserve"

QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, date_time,
        extra FROM bid""",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auction AS A
        INNER JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
    "q4": f"""SELECT Q.category, AVG(Q.final) AS average FROM (
            SELECT MAX(B.price) AS final, A.category FROM auction A, bid B
            WHERE A.id = B.auction AND {_BETWEEN} GROUP BY A.id, A.category) Q
        GROUP BY Q.category""",
    "q5": """SELECT AuctionBids.auction, AuctionBids.num FROM (
            SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND,
                INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end) AS AuctionBids
        JOIN (
            SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime FROM (
                SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
                FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND,
                    INTERVAL '10' SECOND))
                GROUP BY auction, window_start, window_end) AS CountBids
            GROUP BY CountBids.starttime, CountBids.endtime) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
            AND AuctionBids.num >= MaxBids.maxn""",
    "q7": """SELECT B.auction, B.price, B.bidder, B.date_time, B.extra FROM bid B JOIN (
            SELECT MAX(price) AS maxprice, window_end AS date_time
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
            GROUP BY window_start, window_end) B1
        ON B.price = B1.maxprice
        WHERE B.date_time BETWEEN B1.date_time - INTERVAL '10' SECOND AND B1.date_time""",
    "q8": """SELECT P.id, P.name, P.starttime AS stime FROM (
            SELECT id, name, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end) P
        JOIN (
            SELECT seller, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end) A
        ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "q9": f"""SELECT id AS auction, item_name, description, initial_bid, reserve, date_time,
            expires, seller, category, extra, bidder, price, bid_date_time, bid_extra FROM (
            SELECT A.*, B.auction, B.bidder, B.price, B.date_time AS bid_date_time,
                B.extra AS bid_extra, ROW_NUMBER() OVER (
                    PARTITION BY A.id ORDER BY B.price DESC, B.date_time ASC) AS rownum
            FROM auction A, bid B WHERE A.id = B.auction AND {_BETWEEN})
        WHERE rownum <= 1""",
    "q10": f"""SELECT auction, bidder, price, date_time, extra, {_DAY} AS dt,
        DATE_FORMAT(date_time, 'HH:mm') AS hm FROM bid""",
    "q11": """SELECT bidder, count(*) AS bid_count, window_start, window_end
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time),
            INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q12": """SELECT bidder, count(*) AS bid_count, window_start, window_end
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q13": """SELECT B.auction, B.bidder, B.price, B.date_time, S.`value`
        FROM (SELECT *, MOD(auction, 10000) AS key FROM bid) B
        JOIN side_input FOR SYSTEM_TIME AS OF B.date_time AS S ON B.key = S.key""",
    "q14": """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, CASE
            WHEN HOUR(date_time) >= 8 AND HOUR(date_time) <= 18 THEN 'dayTime'
            WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime'
            ELSE 'otherTime' END AS bid_time_type, date_time, extra,
            CAST(CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY} AS `day`, {_BIDS}, {_DISTINCT} FROM bid GROUP BY {_DAY}",
    "q16": f"""SELECT channel, {_DAY} AS `day`, max(DATE_FORMAT(date_time, 'HH:mm')) AS `minute`,
        {_BIDS}, {_DISTINCT} FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""SELECT auction, {_DAY} AS `day`, {_BIDS}, min(price) AS min_price,
        max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, {_DAY}""",
    "q18": """SELECT auction, bidder, price, channel, url, date_time, extra FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY bidder, auction ORDER BY date_time DESC) AS rank_number FROM bid)
        WHERE rank_number <= 1""",
    "q19": """SELECT auction, bidder, price, channel, url, date_time, extra, rank_number FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid)
        WHERE rank_number <= 10""",
    "q20": f"""SELECT auction, bidder, price, channel, url, B.date_time AS bid_date_time,
            B.extra AS bid_extra, {_AUCTION}, A.date_time AS auction_date_time, expires, seller,
            category, A.extra AS auction_extra
        FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id WHERE A.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, CASE
            WHEN LOWER(channel) = 'apple' THEN '0' WHEN LOWER(channel) = 'google' THEN '1'
            WHEN LOWER(channel) = 'facebook' THEN '2' WHEN LOWER(channel) = 'baidu' THEN '3'
            ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
        FROM bid WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
            OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1,
        SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid""",
    "q23": f"""SELECT B.bidder, B.price, B.channel, B.url, B.extra AS bid_extra, P.name,
            P.email_address, P.credit_card, P.city, P.state, P.extra AS person_extra, {_AUCTION},
            A.expires, A.category, A.date_time AS auction_date_time, A.extra AS auction_extra
        FROM bid AS B JOIN person AS P ON P.id = B.bidder
        JOIN auction AS A ON A.seller = B.bidder""",
}
