"""The expected answer that `demo --check` compares with the sinks of `page_views`."""

import json
import sqlite3
import uuid
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from ftdash.embedded.checked import VIEWS_PER_SPLIT, CheckedViews, views_of
from ftdash.embedded.page_views import (
    WINDOW_S,
    compared,
    expected,
    in_files,
    in_kafka,
    in_postgres,
    in_redis,
)
from pipelines.connectors import KafkaAddress
from pipelines.flows.finding import find_flow
from pipelines.flows.page_view_feed import FIRST_MS, provide_topic
from tests.brokers.kafka_broker import KafkaBroker
from tests.brokers.redis_broker import RedisBroker
from tests.postgres_server import PostgresServer
from tests.processes.page_view_counts import SEED, counted

TARGET = "check_1"
FIRST_S = FIRST_MS // 1000
RIGHT = {"app-01": 5, ("app-01", FIRST_S): 3, ("app-01", FIRST_S + WINDOW_S): 2}
ROWS = list(RIGHT.items())


def test_the_right_answer_has_every_view_once_in_total_and_once_in_windows() -> None:
    right = expected(SEED, 700, 2)

    totals = {app: views for app, views in right.items() if isinstance(app, str)}
    assert totals == counted([700, 700])[0]
    assert sum(totals.values()) == 2 * 700 == sum(right.values()) - 2 * 700
    starts = [window[1] for window in right if not isinstance(window, str)]
    assert {start % WINDOW_S for start in starts} == {0}


def test_windows_are_as_long_as_the_flow_makes_them() -> None:
    parameters = find_flow("page_views").parameters
    [length] = [each.default for each in parameters if each.name == "window_s"]

    assert length == str(WINDOW_S)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (ROWS, (0, 0, 0)),
        (ROWS[1:], (1, 0, 0)),
        ([*ROWS, ROWS[1]], (0, 1, 0)),
        ([*ROWS[1:], ("app-01", 4)], (0, 0, 1)),
        ([*ROWS, ("app-77", 1)], (0, 0, 1)),
        ([], (3, 0, 0)),
    ],
)
def test_each_missing_duplicated_or_wrong_row_is_counted(rows, found) -> None:
    answer = compared(RIGHT, rows)

    assert (answer.missing, answer.duplicated, answer.different) == found
    assert answer.is_exact == (found == (0, 0, 0))
    assert bool(answer.sample_differences) == bool(answer.missing or answer.different)


def test_output_files_are_read_knowing_only_their_directory(tmp_path: Path) -> None:
    windows = tmp_path / "windows"
    windows.mkdir()
    (windows / "part-a.jsonl").write_text(lines_of(ROWS[1:2]))
    (windows / "part-b.jsonl").write_text(lines_of(ROWS[2:]))
    (windows / ".prepared.jsonl").write_text(lines_of(ROWS[1:]))
    with closing(sqlite3.connect(tmp_path / "totals.sqlite3")) as connection:
        connection.execute(f"create table {TARGET}_totals (app_id text, views integer)")
        connection.execute(f"insert into {TARGET}_totals values ('app-01', 5)")
        connection.commit()

    assert compared(RIGHT, in_files(tmp_path, TARGET)).is_exact


def test_redis_is_read_by_its_own_client(redis_server: RedisBroker) -> None:
    client = redis.Redis.from_url(redis_server.url)
    for number, (key, views) in enumerate(ROWS):
        kind = "totals" if isinstance(key, str) else "windows"
        app, start = (key, None) if isinstance(key, str) else (key[0], shown(key[1]))
        fields = {
            "app_id": app,
            "views": views,
            **({} if start is None else {"window_start": start}),
        }
        client.hset(f"{{{TARGET}_{kind}}}:row:{number}", mapping=fields)

    assert compared(RIGHT, in_redis(redis_server.url, TARGET)).is_exact


@pytest.mark.slow
def test_postgres_is_read_by_its_own_client(postgres: PostgresServer) -> None:
    columns = {"totals": "", "windows": "window_start timestamptz, "}
    for kind, more in columns.items():
        postgres.execute(f"create table {TARGET}_{kind} (app_id text, {more}views bigint)")
    for key, views in ROWS:
        values = f"'{key}'" if isinstance(key, str) else f"'{key[0]}', '{shown(key[1])}'"
        kind = "totals" if isinstance(key, str) else "windows"
        postgres.execute(f"insert into {TARGET}_{kind} values ({values}, {views})")
    url = postgres.url.replace("postgres://", "postgresql+psycopg://")

    found = in_postgres(url, TARGET)

    for kind in columns:
        postgres.execute(f"drop table {TARGET}_{kind}")
    assert compared(RIGHT, found).is_exact


@pytest.mark.slow
def test_every_window_in_kafka_counts_but_only_the_newest_total(kafka_server: KafkaBroker) -> None:
    target = f"check_{uuid.uuid4().hex[:6]}"
    address = KafkaAddress(kafka_server.bootstrap_servers)
    for kind in ("windows", "totals"):
        provide_topic(address, f"{target}_{kind}", 2)
    windows = lines_of(ROWS[1:]).encode().splitlines()
    kafka_server.produce(f"{target}_windows", windows[:1], partition=0)
    kafka_server.produce(f"{target}_windows", windows[1:], partition=1)
    totals = [json.dumps({"app_id": "app-01", "views": views}).encode() for views in (2, 5)]
    kafka_server.produce(f"{target}_totals", totals, partition=1)

    found = in_kafka(address.settings(lambda error: None), target)

    assert compared(RIGHT, found).is_exact


def test_each_check_has_unique_names_and_a_bounded_input() -> None:
    one, other = CheckedViews().views, CheckedViews().views

    assert one.prefix != other.prefix
    assert one.input != other.input
    assert one.views_per_split == VIEWS_PER_SPLIT
    assert views_of("check_a").input == "check_a_views"


def lines_of(rows) -> str:
    return "".join(
        json.dumps({"app_id": app, "window_start": shown(start), "views": views}) + "\n"
        for (app, start), views in rows
    )


def shown(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()
