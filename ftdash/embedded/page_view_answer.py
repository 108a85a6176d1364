"""The right totals of the generated views, and what each system holds, without the engine.

It counts the views one after the other, and reads each system with that system's own client. Of the
pipeline it knows only the names of the output.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
import sqlalchemy
from confluent_kafka import Consumer, KafkaError, TopicPartition

from ftdash.embedded.outcome import Comparison
from pipelines.domain.errors import Rejected

WINDOW_S = 10
SAMPLES = 5
TURN_S, KAFKA_S = 1.0, 60.0

Window = tuple[str, int]  # app; start in seconds since 1970
Row = tuple[str | Window, int]


def expected(seed: int, views_per_split: int, splits: int) -> dict[str | Window, int]:
    """The totals of each app, and of each app in each window."""
    from pipelines.flows.page_view_feed import page_views

    counts: Counter[str | Window] = Counter()
    for split in range(splits):
        for view in page_views(seed, split, 0, views_per_split).to_pylist():
            second = int(view["at"].timestamp())
            counts[view["app_id"]] += 1
            counts[view["app_id"], second - second % WINDOW_S] += 1
    return dict(counts)


def compared(right: Mapping[str | Window, int], rows: Iterable[Row]) -> Comparison:
    """An unexpected row counts as a difference."""
    found: dict[str | Window, int] = {}
    duplicated = 0
    for key, views in rows:
        duplicated += key in found
        found[key] = views
    missing = [key for key in right if key not in found]
    wrong = [key for key, views in found.items() if right.get(key) != views]
    samples = [f"{key}: {found.get(key)}, not {right.get(key)}" for key in (*missing, *wrong)]
    return Comparison(len(found), len(missing), duplicated, len(wrong), samples[:SAMPLES])


def in_redis(url: str, target: str) -> list[Row]:
    client = redis.Redis.from_url(url, decode_responses=True)
    with closing(client):
        keys = [key for kind in _tables(target) for key in client.scan_iter(f"{{{kind}}}:row:*")]
        found: list[Any] = [client.hgetall(key) for key in keys]
        return [_row(fields) for fields in found]


def in_postgres(url: str, target: str) -> list[Row]:
    return _in_tables(url, _tables(target))


def in_kafka(address: Mapping[str, Any], target: str) -> list[Row]:
    """Each window once; for each app the newest total."""
    windows, totals = _tables(target)
    newest = dict(_row(json.loads(value)) for value in _records(address, totals))
    return [*(_row(json.loads(value)) for value in _records(address, windows)), *newest.items()]


def in_files(directory: Path, target: str) -> list[Row]:
    files = sorted((directory / "windows").glob("part-*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    with closing(sqlite3.connect(directory / "totals.sqlite3")) as connection:
        totals = connection.execute(f'select app_id, views from "{_tables(target)[1]}"').fetchall()
    return [*(_row(json.loads(line)) for line in lines), *((app, views) for app, views in totals)]


def _tables(target: str) -> tuple[str, str]:
    return f"{target}_windows", f"{target}_totals"


def _row(fields: Mapping[str, Any]) -> Row:
    app, views, start = fields["app_id"], int(fields["views"]), fields.get("window_start")
    return (app, views) if start is None else ((app, _second(start)), views)


def _second(start: str | datetime) -> int:
    time = start if isinstance(start, datetime) else datetime.fromisoformat(start)
    return int(time.replace(tzinfo=time.tzinfo or UTC).timestamp())


def _in_tables(url: str, tables: Iterable[str]) -> list[Row]:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        read = [connection.execute(sqlalchemy.text(f'select * from "{t}"')) for t in tables]
        rows = [_row(dict(row)) for result in read for row in result.mappings()]
    engine.dispose()
    return rows


def _records(settings: Mapping[str, Any], topic: str) -> list[bytes]:
    """All committed records. Raises Rejected if the brokers do not supply them in time."""
    committed = {"isolation.level": "read_committed", "enable.auto.commit": False}
    own = {"group.id": "ftdash-check", "enable.partition.eof": True, "auto.offset.reset": "error"}
    consumer = Consumer({**settings, **committed, **own})
    with closing(consumer):
        partitions = consumer.list_topics(topic, KAFKA_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        return list(_until_the_end(consumer, topic, len(partitions)))


def _until_the_end(consumer: Consumer, topic: str, partitions: int) -> Iterable[bytes]:
    silent_s, ended = 0.0, 0
    while ended < partitions:
        message = consumer.poll(TURN_S)
        silent_s = silent_s + TURN_S if message is None else 0.0
        if silent_s > KAFKA_S:
            raise Rejected(f"The records of the topic {topic} cannot be read.")
        if message is None:
            continue
        error, value = message.error(), message.value()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise Rejected(f"The records of the topic {topic} cannot be read: {error}.")
        ended += error is not None
        if error is None and value is not None:
            yield value
