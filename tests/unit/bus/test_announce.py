"""Announcements: they wake the reader, and never hold up the sender."""

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from ftdash.embedded.installation import find_redis_server
from pipelines.bus import announce
from pipelines.bus.announce import (
    STREAM,
    STREAM_LENGTH_MAX,
    AnnouncerStatistics,
    NewsWaiter,
    RedisAnnouncer,
    announce_nothing,
    open_announcer,
)
from pipelines.domain.ids import RunId
from tests.polling import wait_until, wait_until_asleep_in
from tests.reserved_ports import reserved_port

RUN = RunId("r1")
PATIENCE_S, PATIENCE_MS = 20.0, 20_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator["RealRedis"]:
    with reserved_port() as port:
        real = RealRedis(tmp_path, port)
        real.start()
        yield real
        real.kill()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the announcer and the waiter from giving up a Redis that is slow on a slow machine."""
    monkeypatch.setattr(announce, "TIMEOUT_S", PATIENCE_S)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_an_announcement_wakes_the_waiter(server: "RealRedis") -> None:
    waiter, announcer = waiter_at(server), RedisAnnouncer(server.url)
    assert not waiter.wait_for_news(1)  # from now on it knows its position in the stream

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_news, PATIENCE_MS)
        wait_until_asleep_in(NewsWaiter.wait_for_news)
        announcer(RUN, 1)

        assert waiting.result()
    announcer.close()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_news_between_two_waits_is_not_lost(server: "RealRedis") -> None:
    waiter, announcer = waiter_at(server), RedisAnnouncer(server.url)
    assert not waiter.wait_for_news(1)

    announcer(RUN, 1)
    wait_until(lambda: announcer.statistics().announced_count == 1)

    assert waiter.wait_for_news(PATIENCE_MS)
    assert not waiter.wait_for_news(1)
    announcer.close()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_the_last_announcements_of_a_driver_are_sent_before_it_exits(server: "RealRedis") -> None:
    for sequence in range(1, 21):
        with open_announcer(server.url) as announce:
            announce(RUN, sequence)

    with redis.Redis.from_url(server.url) as client:
        sent = [int(entry[1][b"sequence"]) for entry in client.xrange(STREAM)]
    assert sent == list(range(1, 21))
    assert not [each for each in threading.enumerate() if each.name == "announcer"]


def test_an_announcement_made_during_a_send_is_also_sent_before_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []

    def xadd(_: redis.Redis, stream: str, fields: dict[str, int], **options: object) -> None:
        sent.append(fields["sequence"])
        if len(sent) == 1:
            announcer(RUN, 2)
            closing.start()
            announcer._is_closed.wait(PATIENCE_S)

    monkeypatch.setattr(redis.Redis, "xadd", xadd)
    announcer = RedisAnnouncer("redis://nowhere")
    closing = threading.Thread(target=announcer.close)

    announcer(RUN, 1)

    wait_until(lambda: sent == [1, 2])
    closing.join()


def test_the_sender_does_not_wait_for_an_announcement_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_sending, may_fail = threading.Event(), threading.Event()

    def xadd(*_: object, **options: object) -> None:
        is_sending.set()
        may_fail.wait(PATIENCE_S)
        raise redis.ConnectionError

    monkeypatch.setattr(redis.Redis, "xadd", xadd)
    announcer = RedisAnnouncer("redis://nowhere")
    announcer(RUN, 0)
    assert is_sending.wait(PATIENCE_S)

    for sequence in range(1, 1_000):
        announcer(RUN, sequence)

    assert announcer.statistics().failed_count == 0, "the first one is still being sent"
    may_fail.set()
    wait_until(lambda: announcer.statistics().failed_count > 0)
    announcer.close()


@pytest.mark.slow
def test_unsent_announcements_are_counted_while_redis_is_down(server: "RealRedis") -> None:
    server.kill()
    announcer = RedisAnnouncer(server.url)

    announcer(RUN, 1)

    wait_until(lambda: announcer.statistics().failed_count > 0)
    announcer.close()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_hanging_redis_does_not_hold_up_the_sender(server: "RealRedis") -> None:
    announcer = RedisAnnouncer(server.url)
    server.pause()

    for sequence in range(1_000):
        announcer(RUN, sequence)

    assert announcer.statistics() == AnnouncerStatistics(0, 0), "none has waited for an answer"
    server.kill()
    announcer.close()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_announcements_arrive_again_after_redis_restarts(server: "RealRedis") -> None:
    announcer, waiter = RedisAnnouncer(server.url), waiter_at(server)
    announcer(RUN, 1)
    wait_until(lambda: announcer.statistics().announced_count == 1)
    server.kill()
    announcer(RUN, 2)
    wait_until(lambda: announcer.statistics().failed_count > 0)
    server.start()

    def woken() -> bool:
        announcer(RUN, 3)
        return waiter.wait_for_news(100)

    wait_until(woken)
    announcer.close()


@pytest.mark.slow
def test_a_waiter_without_redis_returns_after_its_timeout(server: "RealRedis") -> None:
    server.kill()
    waiter = waiter_at(server)

    started = time.monotonic()

    assert not waiter.wait_for_news(300)
    assert 0.25 < time.monotonic() - started < PATIENCE_S


@pytest.mark.slow
def test_a_waiter_gives_up_on_a_hanging_redis(server: "RealRedis") -> None:
    waiter = NewsWaiter(server.url, longest_wait_ms=300)
    server.pause()

    started = time.monotonic()

    assert not waiter.wait_for_news(300)
    assert time.monotonic() - started < PATIENCE_S


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_the_stream_stays_short(server: "RealRedis") -> None:
    client = redis.Redis.from_url(server.url)
    for _ in range(3 * STREAM_LENGTH_MAX):
        client.xadd(STREAM, {"run_id": RUN, "sequence": 0})
    announcer = RedisAnnouncer(server.url)

    announcer(RUN, 1)

    wait_until(lambda: client.xlen(STREAM) < 2 * STREAM_LENGTH_MAX)
    announcer.close()


def test_a_run_without_redis_announces_nothing() -> None:
    with open_announcer("") as announce:
        assert announce is announce_nothing


def waiter_at(server: "RealRedis") -> NewsWaiter:
    return NewsWaiter(server.url, longest_wait_ms=PATIENCE_MS)


class RealRedis:
    """A real Redis server that keeps its data in the test's directory."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        executable = str(find_redis_server().executable)
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(
            [executable, *options, "--dir", str(self._directory)], stdout=subprocess.DEVNULL
        )
        client = redis.Redis.from_url(self.url)
        wait_until(lambda: answers(client))

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(19)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
