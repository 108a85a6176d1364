"""The worker and its beat as real processes on a real Redis that is killed, emptied and restarted.

The tests read the results from their database: the sign of life that each reconcile leaves there.
"""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from django.conf import settings as project
from django.test import Client
from django.urls import reverse
from kombu import Connection, Consumer, Message, Queue, common
from kombu.utils import functional

from ftdash import tasks
from ftdash.celery import application
from ftdash.embedded.installation import find_redis_server
from ftdash.metrics.models import Heartbeat
from ftdash.times import moment
from tests.new_home import new_home
from tests.polling import wait_until
from tests.reserved_ports import reserved_port
from tests.web.page_words import words_of

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
WORKER = ("worker", "--loglevel", "INFO")


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator["ControlPlane"]:
    with reserved_port() as port:
        plane = ControlPlane(new_home(tmp_path), port)
        try:
            plane.start_redis()
            plane.start("worker", *WORKER)
            plane.start("beat", "beat", "--loglevel", "INFO")
            yield plane
        finally:
            plane.end()


def test_beat_logs_one_line_for_a_task_that_it_cannot_send(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with reserved_port() as port:
        away = Celery(broker=f"redis://127.0.0.1:{port}")
        away.conf.task_publish_retry = False
        away.conf.broker_transport_options = {"max_retries": 0}
        scheduler = Scheduler(away, lazy=True)

        scheduler.apply_entry(ScheduleEntry("reconcile", "ftdash.tasks.reconcile", app=away))

    (line,) = caplog.records
    assert "Couldn't apply scheduled task reconcile: Error 111" in line.getMessage()
    assert "\n" not in line.getMessage()
    assert line.exc_info is None


@pytest.mark.slow
def test_reconcile_continues_after_redis_is_emptied_killed_and_restarted(
    control_plane: "ControlPlane",
    operator: Client,
    patient: float,
    settings: Any,
) -> None:
    """While Redis is gone, the pages say so."""
    control_plane.wait_for_reconcile()

    redis.Redis.from_url(control_plane.url).flushall()
    control_plane.wait_for_reconcile()

    control_plane.kill("redis")
    control_plane.wait_for_silence(patient)
    Heartbeat.objects.create(name="reconcile", at=control_plane.reconciled_at(), pid=1)
    settings.SILENT_AFTER_S = patient
    assert "the Redis between them" in words_of(operator, reverse("lab"))

    control_plane.start_redis()
    control_plane.wait_for_reconcile()


@pytest.mark.slow
def test_reconcile_continues_after_the_worker_is_killed_and_replaced(
    control_plane: "ControlPlane",
) -> None:
    control_plane.wait_for_reconcile()

    control_plane.kill("worker")
    control_plane.start("worker", *WORKER)

    control_plane.wait_for_reconcile()


def test_a_message_is_not_redelivered_while_its_task_may_still_run() -> None:
    longest_s = project.CELERY_TASK_TIME_LIMIT
    redelivered_after_s = application.conf.broker_transport_options["visibility_timeout"]

    assert redelivered_after_s > longest_s
    assert application.conf.task_acks_late


def test_messages_to_workers_are_json_only() -> None:
    assert application.conf.accept_content == ["json"]
    assert application.conf.task_serializer == "json"


@pytest.mark.slow
def test_asking_without_a_broker_fails_without_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr(functional, "sleep", slept_s.append)
    options = application.conf.broker_transport_options

    with reserved_port() as port:
        nobody_there = f"redis://127.0.0.1:{port}/0"
        with (
            application.connection_for_write(nobody_there, transport_options=options) as connection,
            pytest.raises(Exception, match="Connection refused"),
        ):
            tasks.deliver_request.apply_async((1,), connection=connection, retry=False)

    assert sum(slept_s) == 0
    assert options["socket_connect_timeout"] <= 2


@pytest.mark.slow
def test_a_worker_forgets_a_connection_that_its_broker_ended_amid_a_task(tmp_path: Path) -> None:
    """It closes the connection twice, and acknowledges the task's message afterwards."""
    with reserved_port() as port:
        plane = ControlPlane(tmp_path, port)
        try:
            plane.start_redis()
            connection, message = reading_after_a_message(plane.url)
            plane.kill("redis")
        finally:
            plane.end()

    with suppress(Exception):  # as Celery does
        connection.collect()
    common.ignore_errors(connection, connection.close)
    message.ack_log_error(logging.getLogger(__name__), connection.connection_errors)

    assert not message.acknowledged


def reading_after_a_message(url: str) -> tuple[Connection, Message]:
    """Returns a connection whose two channels wait for messages, and one that came before."""
    received: list[Message] = []
    with application.connection_for_write(url) as writing:
        writing.SimpleQueue("requests").put("first")
    connection = application.connection_for_read(url)
    for channel, queue in (
        (connection.default_channel, Queue("requests")),
        (connection.channel(), Queue("replies")),
    ):
        Consumer(channel, queue, on_message=received.append).consume()
    while not received:
        connection.drain_events(timeout=PATIENCE_S)
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.01)
    return connection, received[0]


class ControlPlane:
    """Worker, beat and Redis in a home of their own; each is a process of this test."""

    def __init__(self, home: Path, port: int) -> None:
        self._home = home
        self._port = port
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._environment = {
            **os.environ,
            "FTDASH_HOME": str(home),
            "FTDASH_REDIS_URL": self.url,
            "DJANGO_SETTINGS_MODULE": "ftdash.settings",
        }

    def start_redis(self) -> None:
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", ""]
        executable = str(find_redis_server().executable)
        self._spawn("redis", [executable, *options, "--dir", str(self._home)])
        wait_until(lambda: answers(self.url), otherwise=self.logs)

    def start(self, name: str, *arguments: str) -> None:
        celery = [sys.executable, "-m", "celery", "-A", "ftdash.celery:application"]
        self._spawn(name, [*celery, *arguments])

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait_for_reconcile(self) -> None:
        """Waits until a reconcile has begun after now, by the same worker."""
        now = time.time()
        wait_until(lambda: self._reconciled_since(now), within_s=PATIENCE_S, otherwise=self.logs)

    def wait_for_silence(self, seconds: float) -> None:
        """Waits until no reconcile has begun for so long."""
        wait_until(
            lambda: time.time() - self._reconciled_at() > seconds,
            within_s=PATIENCE_S,
            otherwise=self.logs,
        )

    def reconciled_at(self) -> datetime:
        return moment(round(1000 * self._reconciled_at()))

    def end(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self._home.glob("*.log"))

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self._home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )

    def _reconciled_since(self, moment_s: float) -> bool:
        assert self._processes["worker"].poll() is None, self.logs()
        return self._reconciled_at() > moment_s

    def _reconciled_at(self) -> float:
        with sqlite3.connect(self._home / "ftdash.sqlite3") as database:
            query = "select unixepoch(max(at)) from metrics_heartbeat"
            (at,) = database.execute(query).fetchone()
        return float(at or 0)


def answers(url: str) -> bool:
    try:
        return bool(redis.Redis.from_url(url).ping())
    except redis.RedisError:
        return False
