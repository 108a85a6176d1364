"""`page_views` in Kafka, PostgreSQL and Redis at once, each killed meanwhile.

The counts are exact for each system's own client, and no text shows the passwords.
"""

import itertools
import json
import os
import signal
import sqlite3
import uuid
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.utils import timezone

from ftdash.jobs.models import Pipeline, Run
from ftdash.projection.projector import Projector
from pipelines.connectors import KafkaAddress
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import MetricsSampled
from pipelines.domain.status import JobStatus
from pipelines.flows.page_view_feed import (
    KafkaViewLog,
    RedisViewLog,
    page_views,
    provide_topic,
    stream_of,
)
from pipelines.flows.page_view_variables import DATABASE, KAFKA, KAFKA_SECURITY, REDIS
from tests.brokers.kafka_broker import PASSWORD, USER, KafkaBroker
from tests.brokers.onlooker import Onlooker
from tests.brokers.readers import ConsoleConsumer, psql, redis_cli_or_skip, redis_hashes
from tests.brokers.redis_broker import RedisBroker
from tests.driven_run import StartedRun
from tests.polling import wait_until
from tests.postgres_server import GUEST, GUEST_PASSWORD, ROLE, PostgresServer
from tests.processes.host import hosted_run
from tests.processes.page_view_counts import (
    SEED,
    WINDOW_S,
    Windows,
    counted,
    each_once,
    feeding,
    pairs,
    totals_in,
    windows_in,
)
from tests.processes.savepoint_requests import WHO, savepoint_by
from tests.processes.told import Texts, all_answers, all_pages, all_rows, files_in, holding
from tests.web.journals import new_run

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

STEP_S = 120.0
SPLITS = 2
PLAIN_STORAGE = "django.contrib.staticfiles.storage.StaticFilesStorage"
SOONER = {
    "execution.checkpointing.interval": "200 ms",
    "restart-strategy.exponential-delay.initial-backoff": "50 ms",
    "restart-strategy.exponential-delay.max-backoff": "500 ms",
}


@pytest.mark.django_db
def test_counts_are_exact_in_each_system_after_each_is_killed(
    tmp_path: Path,
    kafka_server: KafkaBroker,
    postgres: PostgresServer,
    redis_server: RedisBroker,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis_cli_or_skip()
    name = f"views_{uuid.uuid4().hex[:8]}"
    windows, totals = f"{name}_windows", f"{name}_totals"
    kafka = KafkaAddress(kafka_server.bootstrap_servers)
    for topic in (name, windows, totals):
        provide_topic(kafka, topic, SPLITS)
    environment = asking_for_passwords(kafka_server, postgres, redis_server, name)
    parameters = {
        "source": "kafka",
        "input": name,
        "into": "redis,postgres,kafka,files",
        "output": str(tmp_path / "counts"),
        "target": name,
        "window_s": str(WINDOW_S),
    }
    (tmp_path / "counts").mkdir()
    columns = ["app_id", "window_start", "views"]
    asked_rows = f"select {', '.join(columns)} from {name}.{windows}"
    looks: dict[str, Callable[[], Windows]] = {
        "psql": lambda: each_once(psql(postgres, asked_rows)),
        "redis-cli": lambda: each_once(redis_hashes(redis_server, windows, columns)),
        "a reader of files": lambda: each_once(window_files(tmp_path / "counts", columns)),
    }
    feed = ("--to", "kafka", "--name", name, "--splits", str(SPLITS), "--views-per-s", "400")
    with (
        ConsoleConsumer(kafka_server, f"{windows}|{totals}", tmp_path / "consumed.txt") as console,
        hosted_run(
            tmp_path / "home",
            parameters,
            settings=SOONER,
            spec_fields={"pipeline": "page_views"},
            environment=environment,
        ) as run,
        ExitStack() as all_the_time,
    ):
        readers = [all_the_time.enter_context(Onlooker(*each)) for each in looks.items()]
        with feeding(environment, *feed) as first:
            run.wait_for_more(2, STEP_S)
            redis_server.server.kill()
            redis_server.server.start()
            run.wait_for_more(2, STEP_S)
            first.kill()
        with feeding(environment, *feed):
            postgres.kill()
            postgres.start()
            run.wait_for_more(2, STEP_S)
            os.kill(run.pid_of(0), signal.SIGKILL)
            kafka_server.server.kill()
            kafka_server.server.start()
            run.wait_for_more(2, STEP_S)
            wait_until(lambda: all(reader.seen for reader in readers), within_s=STEP_S)
        given = views_in(kafka, name)
        wait_until(lambda: total_in_redis(redis_server, totals) == sum(given), within_s=STEP_S)
        savepoint_by(run, StopWithSavepoint(**WHO, drain=True))  # type: ignore[arg-type]
        assert run.wait_until_over(STEP_S).status is JobStatus.FINISHED
        ends = mark_ends(kafka_server, [windows, totals])
        all_along = consumed(console, ends)
    with ConsoleConsumer(
        kafka_server, f"{windows}|{totals}", tmp_path / "consumed_afterwards.txt"
    ) as console:
        in_kafka = consumed(console, ends)

    right_totals, right_windows = counted(given)
    assert set(all_along) == set(in_kafka), (
        "it repeats some when its broker dies, and shows no other"
    )
    assert [problem for reader in readers for problem in reader.problems] == []
    assert windows_in(in_kafka) == right_windows
    assert totals_in(in_kafka) == right_totals
    for look in looks.values():
        assert look() == right_windows
    assert pairs(psql(postgres, f"select app_id, views from {name}.{totals}")) == right_totals
    assert pairs(redis_hashes(redis_server, totals, ["app_id", "views"])) == right_totals
    assert totals_of_files(tmp_path / "counts", totals) == right_totals
    settings.JOBS_ROOT = tmp_path / "home"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": PLAIN_STORAGE}}
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    told = told_of(run, parameters)
    assert holding(told, name)
    for password in (PASSWORD, GUEST_PASSWORD, redis_server.address.password):
        assert holding(told, password) == []


def test_a_malformed_view_is_set_aside_and_all_others_are_counted(
    tmp_path: Path, redis_server: RedisBroker
) -> None:
    """It is set aside with its place and its error; without the policy it would end the run."""
    redis_cli_or_skip()
    name = f"views_{uuid.uuid4().hex[:8]}"
    windows, totals = f"{name}_windows", f"{name}_totals"
    log = RedisViewLog(redis_server.url, name)
    bad = [
        {"user_id": "nobody", "app_id": "app-01", "page": "/", "at": "2026-01-01T00:00:00Z"},
        {"user_id": "1", "app_id": "app-01", "page": "/"},
    ]
    for split in range(SPLITS):
        log.append(split, page_views(SEED, split, 0, 200))
        redis.Redis.from_url(redis_server.url).xadd(stream_of(name, split), bad[split])
        log.append(split, page_views(SEED, split, 200, 300))
    parameters = {
        "input": ",".join(stream_of(name, split) for split in range(SPLITS)),
        "target": name,
        "window_s": str(WINDOW_S),
    }
    flow: dict[str, object] = {"pipeline": "page_views"}
    environment = {REDIS: redis_server.url}

    with hosted_run(
        tmp_path / "ends", parameters, settings=SOONER, spec_fields=flow, environment=environment
    ) as run:
        ended = run.wait_until_over(STEP_S)
    assert ended.status is JobStatus.FAILED
    assert name in ended.reason
    with hosted_run(
        tmp_path / "home",
        parameters,
        settings=SOONER | {"execution.poison-records.policy": "quarantine"},
        spec_fields=flow,
        environment=environment,
    ) as run:
        wait_until(lambda: total_in_redis(redis_server, totals) == 600, within_s=STEP_S)
        wait_until(lambda: not_read_yet(run) == [0] * SPLITS, within_s=STEP_S)
        savepoint_by(run, StopWithSavepoint(**WHO, drain=True))  # type: ignore[arg-type]
        assert run.wait_until_over(STEP_S).status is JobStatus.FINISHED

    right_totals, right_windows = counted([300, 300])
    columns = ["app_id", "window_start", "views"]
    assert each_once(redis_hashes(redis_server, windows, columns)) == right_windows
    assert pairs(redis_hashes(redis_server, totals, ["app_id", "views"])) == right_totals
    places = (tmp_path / "home" / "page_views" / "quarantine").glob("*/part-*.jsonl")
    lines = [json.loads(line) for file in places for line in file.read_text().splitlines()]
    aside = {line["split"]: line for line in lines}
    assert len(lines) == len(aside) == SPLITS
    for split, (column, value) in enumerate([("user_id", "nobody"), ("at", "app-01")]):
        line = aside[stream_of(name, split)]
        assert column in line["error"]
        assert value in line["record"]
        assert line["offset"] > 0


def window_files(directory: Path, columns: list[str]) -> list[list[str]]:
    """Reads the files as a program that knows only the directory."""
    files = sorted((directory / "windows").glob("part-*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [[str(row[column]) for column in columns] for row in rows]


def totals_of_files(directory: Path, table: str) -> dict[str, int]:
    with closing(sqlite3.connect(directory / "totals.sqlite3")) as connection:
        return dict(connection.execute(f"select app_id, views from {table}").fetchall())


def views_in(kafka: KafkaAddress, topic: str) -> list[int]:
    """Returns the number of views in each split, once the feed has ended."""
    log = KafkaViewLog(kafka, topic)
    return [log.count(split) for split in range(SPLITS)]


def mark_ends(broker: KafkaBroker, topics: list[str]) -> set[str]:
    """Writes a last record to each partition."""
    ends = set()
    for topic, partition in itertools.product(topics, range(SPLITS)):
        end = f"the end of {topic} {partition}"
        broker.produce(topic, [end.encode()], partition=partition)
        ends.add(end)
    return ends


def consumed(console: ConsoleConsumer, ends: set[str]) -> list[str]:
    """Waits for the last record of each partition; by then the reader has all records before it."""
    wait_until(lambda: ends <= set(console.lines()), within_s=STEP_S)
    return [line for line in console.lines() if line not in ends]


def total_in_redis(broker: RedisBroker, prefix: str) -> int:
    return sum(int(views) for (views,) in redis_hashes(broker, prefix, ["views"]))


def asking_for_passwords(
    kafka: KafkaBroker, postgres: PostgresServer, redis: RedisBroker, schema: str
) -> dict[str, str]:
    """Returns the addresses of the servers, with the passwords that each one asks for."""
    url = postgres.url_of(schema)
    postgres.execute(f"grant all on schema {schema} to {postgres.guest()}")
    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    return {
        KAFKA: kafka.secured,
        KAFKA_SECURITY: json.dumps(security),
        DATABASE: url.replace(f"{ROLE}@", f"{GUEST}:{GUEST_PASSWORD}@"),
        REDIS: redis.url,
    }


def not_read_yet(run: StartedRun) -> list[int]:
    """Returns the number of unread records of each subtask that knows it, in the newest sample."""
    samples = [envelope.event for envelope in run.of(MetricsSampled)]
    newest = samples[-1] if samples else None
    subtasks = newest.subtasks if isinstance(newest, MetricsSampled) else []
    return [each.pending_records for each in subtasks if each.pending_records is not None]


def told_of(hosted: StartedRun, parameters: dict[str, str]) -> Texts:
    """Returns all that the dashboard stores and shows of the run, and the files behind it."""
    columns = {"flow": "page_views", "created_at": timezone.now(), "parameters": parameters}
    Pipeline.objects.create(name="page_views", settings=SOONER, **columns)
    run = new_run("page_views", run_id=hosted.directory.run_id, parameters=parameters)
    while Projector().run_once():
        pass
    newest = max(int(each.checkpoint_id) for each in hosted.completed())
    pages, answers = all_pages(), all_answers(Run.objects.get(pk=run.pk), newest)
    assert all(
        sum(each.startswith(b"200") for each in texts.values()) > 20 for texts in (pages, answers)
    )
    return {**files_in(hosted.directory.jobs_root), **all_rows(), **pages, **answers}
