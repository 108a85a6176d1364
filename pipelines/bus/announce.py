"""Announces over a Redis Stream that a journal has grown. This is only a wake-up call.

Nothing depends on it: the journal holds the events, and each waiter also polls by itself. So an
announcement may be lost, and its sender must never wait for it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipelines.domain.errors import check
from pipelines.domain.ids import RunId

STREAM = "ftdash:news"
STREAM_LENGTH_MAX = 1000
TIMEOUT_S = 0.5
PAUSE_AFTER_FAILURE_S = 1.0


@dataclass(frozen=True, slots=True)
class AnnouncerStatistics:
    announced_count: int  # entries that reached the stream
    failed_count: int  # entries that did not; readers see the events anyway, a little later


def announce_nothing(run_id: RunId, sequence: int) -> None:
    """The announcer of a run without Redis."""


class RedisAnnouncer:
    """A call does no I/O: one thread sends the newest sequence of each run."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(
            url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S
        )
        self._newest: dict[RunId, int] = {}
        self._lock = threading.Lock()
        self._has_news = threading.Event()
        self._is_closed = threading.Event()
        self._announced_count = 0
        self._failed_count = 0
        self._thread = threading.Thread(target=self._send_all, name="announcer", daemon=True)
        self._thread.start()

    def __call__(self, run_id: RunId, sequence: int) -> None:
        with self._lock:
            self._newest[run_id] = sequence
        self._has_news.set()

    def statistics(self) -> AnnouncerStatistics:
        return AnnouncerStatistics(self._announced_count, self._failed_count)

    def close(self) -> None:
        """Sends the last announcements before it closes, unless Redis is down."""
        self._is_closed.set()
        self._has_news.set()
        self._thread.join(timeout=3 * TIMEOUT_S)
        self._redis.close()

    def _send_all(self) -> None:
        while not self._is_closed.is_set():
            self._has_news.wait()
            self._has_news.clear()
            if not self._send(self._take()):
                self._is_closed.wait(PAUSE_AFTER_FAILURE_S)
        self._send(self._take())

    def _take(self) -> dict[RunId, int]:
        with self._lock:
            taken, self._newest = self._newest, {}
        return taken

    def _send(self, news: dict[RunId, int]) -> bool:
        try:
            for run_id, sequence in news.items():
                self._redis.xadd(
                    STREAM,
                    {"run_id": run_id, "sequence": sequence},
                    maxlen=STREAM_LENGTH_MAX,
                    approximate=True,
                )
        except redis.RedisError:
            self._failed_count += len(news)
            return False
        self._announced_count += len(news)
        return True


class NewsWaiter:
    """The reader's side: returns on news or after the timeout, with or without a Redis."""

    def __init__(self, url: str, *, longest_wait_ms: int) -> None:
        # A waiter soon gives up on a Redis that hangs, and does not retry: its owner has other
        # work and polls by itself.
        self._redis = redis.Redis.from_url(
            url,
            socket_connect_timeout=TIMEOUT_S,
            socket_timeout=longest_wait_ms / 1000 + TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._longest_wait_ms = longest_wait_ms
        self._seen: bytes | None = None  # id of the last entry read; None: begin with the next

    def wait_for_news(self, timeout_ms: int) -> bool:
        """Returns True when something was announced, False after `timeout_ms` without news."""
        check(timeout_ms <= self._longest_wait_ms, "a wait ends before its socket does")
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            self._seen = self._seen or self._newest_id()
            answer = self._redis.xread({STREAM: self._seen}, block=timeout_ms)
        except redis.RedisError:
            self._seen = None
            time.sleep(max(0.0, deadline - time.monotonic()))
            return False
        if not answer:
            return False
        self._seen = _last_id(answer)
        return True

    def close(self) -> None:
        self._redis.close()

    def _newest_id(self) -> bytes:
        newest: Any = self._redis.xrevrange(STREAM, count=1)
        return newest[0][0] if newest else b"0-0"


def _last_id(answer: Any) -> bytes:
    """The shape depends on the protocol: pairs of name and entries, or a dictionary of them."""
    entries = next(iter(answer.values()))[-1] if isinstance(answer, dict) else answer[0][1]
    last: bytes = entries[-1][0]
    return last


@contextmanager
def open_announcer(url: str) -> Iterator[Callable[[RunId, int], None]]:
    """An empty `url` means that there is no Redis."""
    if not url:
        yield announce_nothing
        return
    with closing(RedisAnnouncer(url)) as announcer:
        yield announcer
