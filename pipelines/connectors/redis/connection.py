"""A client of a Redis server, the meaning of its errors, and the raw entries of its streams.

No text here contains the password. `Retryable`: the server is away, starts up, or accepts nothing
at the moment. `Rejected`: it refuses. This module knows neither splits nor schemas.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import redis
from redis.exceptions import ClusterDownError, NoPermissionError, TryAgainError

from pipelines.connectors.redis.stream_entries import StreamExtent, id_of, offset_of
from pipelines.connectors.sink import host_of
from pipelines.domain.clock import patience_s
from pipelines.domain.errors import Rejected, Retryable

REDIS_PORT = 6379
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0
PASSING = (ClusterDownError, TryAgainError)
"""Answers during a failover, MASTERDOWN included, and while a cluster moves its slots."""


def client_of(url: str) -> Any:
    """Connects with the first request, and again after a failure."""
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            socket_connect_timeout=patience_s(CONNECT_TIMEOUT_S),
            socket_timeout=patience_s(ANSWER_TIMEOUT_S),
            retry=None,
        )
    except ValueError:
        # The text of the error may contain the address, and so the password.
        raise Rejected("The address of the Redis server is no redis:// address.") from None


def place_of(client: Any) -> str:
    options: dict[str, Any] = client.get_connection_kwargs()
    if "path" in options:
        return str(options["path"])
    return f"{options.get('host')}:{options.get('port')}"


def database_of(client: Any) -> str:
    """The same text for the same database, however it is addressed; without user and password."""
    options: dict[str, Any] = client.get_connection_kwargs()
    number = options.get("db") or 0
    if "path" in options:
        return f"{options['path']}, database {number}"
    host = host_of(str(options.get("host", "")))
    return f"{host}:{options.get('port') or REDIS_PORT}, database {number}"


@contextmanager
def redis_errors(client: Any, wish: str) -> Iterator[None]:
    """Translates errors; `wish` says what was refused, such as `to read the stream x`.

    Other errors pass through.
    """
    try:
        yield
    except (redis.AuthenticationError, NoPermissionError) as error:
        raise Rejected(f"The Redis server refuses {wish}: check user and password.") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise Retryable(f"the Redis server {place_of(client)} does not answer") from error
    except PASSING as error:
        raise Retryable(f"the Redis server {place_of(client)} serves nothing: {error}") from error


Entry = tuple[bytes, list[bytes]]
"""An id, then its fields and values in turn."""

PAGE = 10_000


class Found(NamedTuple):
    """One consistent reading. `extent` None: the stream does not exist."""

    extent: StreamExtent | None
    entries: list[Entry]
    marked: list[bytes] | None


class RedisConnection:
    """Connects with the first request, and again after a failure."""

    def __init__(self, url: str) -> None:
        self._client = client_of(url)
        for command in ("XRANGE", "XINFO STREAM"):
            self._client.set_response_callback(command, _as_it_comes)

    def __enter__(self) -> "RedisConnection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def extent(self, stream: str) -> StreamExtent | None:
        """Returns None if the stream does not exist."""
        with self._asking(stream):
            answer = self._client.execute_command("XINFO STREAM", stream)
            return StreamExtent.of(_pairs(answer))
        return None

    def look(self, stream: str, marked: int | None) -> Found:
        """Like `entries`, but fetches no entries."""
        return self.entries(stream, 0, None, 0, marked)

    def entries(
        self, stream: str, offset: int, end_offset: int | None, count: int, marked: int | None
    ) -> Found:
        """Fetches up to `count` entries from `offset` on, and the contents of that at `marked`."""
        with self._asking(stream):
            transaction = self._client.pipeline(transaction=True)
            transaction.execute_command("XINFO STREAM", stream)
            if count:
                transaction.execute_command("XRANGE", *_range(stream, offset, end_offset, count))
            if marked is not None:
                transaction.execute_command("XRANGE", *_range(stream, marked, marked + 1, 1))
            answer, *ranges = transaction.execute()
            entries = ranges.pop(0) if count else []
            held = [fields for found in ranges for _, fields in found]
            return Found(StreamExtent.of(_pairs(answer)), entries, held[0] if held else None)
        return Found(None, [], None)

    def count(self, stream: str, extent: StreamExtent) -> int:
        """Counts the entries up to the largest id that was deleted.

        Counts from both ends in turn, so that the shorter part decides how long it takes.
        """
        hole = extent.max_deleted + 1
        up_to, behind = self._pages(stream, 0, hole), self._pages(stream, hole, extent.last + 1)
        counted_up_to = counted_behind = 0
        for page, page_behind in zip(up_to, behind, strict=False):
            counted_up_to += page
            counted_behind += page_behind
            if page < PAGE:
                return counted_up_to
            if page_behind < PAGE:
                break
        return extent.length - counted_behind

    def _pages(self, stream: str, offset: int, end_offset: int) -> Iterator[int]:
        """Yields the number of entries on each page; the last page is not full."""
        is_last = False
        while not is_last:
            entries: list[Entry] = []
            with self._asking(stream):
                page = _range(stream, offset, end_offset, PAGE)
                entries = self._client.execute_command("XRANGE", *page)
            yield len(entries)
            is_last = len(entries) < PAGE
            offset = offset if is_last else offset_of(entries[-1][0]) + 1

    @contextmanager
    def _asking(self, stream: str) -> Iterator[None]:
        """Leaves the context quietly if the stream does not exist."""
        try:
            with redis_errors(self._client, f"to read the stream {stream}"):
                yield
        except redis.ResponseError as error:
            if "no such key" in str(error):
                return
            if "WRONGTYPE" in str(error):
                raise Rejected(f"The Redis key {stream} is not a stream.") from error
            raise Rejected(f"The Redis server cannot read the stream {stream}: {error}.") from error


def _range(stream: str, offset: int, end_offset: int | None, count: int) -> tuple[str | int, ...]:
    last = "+" if end_offset is None else id_of(end_offset - 1)
    return (stream, id_of(offset), last, "COUNT", count)


def _as_it_comes(answer: object, **options: object) -> object:
    """Keeps the answer raw: the client's dictionary per entry would take longer than all else."""
    return answer


def _pairs(answer: list[Any]) -> dict[bytes, object]:
    return dict(zip(answer[::2], answer[1::2], strict=True))
