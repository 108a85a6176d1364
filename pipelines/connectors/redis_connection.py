"""A connection to a Redis server: entries as they come, and errors without the password.

Turns what the client raises into `Retryable` (the server is away, or comes up) and `Rejected` (it
refuses). Knows neither splits nor schemas.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from pipelines.connectors.redis_ids import id_of
from pipelines.connectors.stream_extent import StreamExtent
from pipelines.domain.errors import Rejected, Retryable

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0

Entry = tuple[bytes, list[bytes]]
"""An id, and its fields and values in turn."""


class RedisConnection:
    """Connects with the first request, and again after a failure."""

    def __init__(self, url: str) -> None:
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                protocol=2,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=ANSWER_TIMEOUT_S,
                retry=None,
            )
        except ValueError:
            # The text of the error may hold the address, and so the password.
            raise Rejected("The address of the Redis server is no redis:// address.") from None
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
        """None: there is no such stream."""
        with self._asking(stream):
            answer = self._client.execute_command("XINFO STREAM", stream)
            return StreamExtent.of(_pairs(answer))
        return None

    def entries(
        self, stream: str, offset: int, end_offset: int | None, count: int
    ) -> tuple[StreamExtent | None, list[Entry]]:
        """What the stream holds, and entries from `offset` on, both of one moment."""
        last = "+" if end_offset is None else id_of(end_offset - 1)
        with self._asking(stream):
            transaction = self._client.pipeline(transaction=True)
            transaction.execute_command("XINFO STREAM", stream)
            transaction.execute_command("XRANGE", stream, id_of(offset), last, "COUNT", count)
            answer, entries = transaction.execute()
            return StreamExtent.of(_pairs(answer)), entries
        return None, []

    @contextmanager
    def _asking(self, stream: str) -> Iterator[None]:
        """Leaves quietly when there is no such stream."""
        try:
            yield
        except (redis.AuthenticationError, NoPermissionError) as error:
            raise Rejected(
                f"The Redis server refuses to read the stream {stream}: check user and password."
            ) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise Retryable(f"the Redis server {self._place()} does not answer") from error
        except redis.ResponseError as error:
            if "no such key" in str(error):
                return
            if "WRONGTYPE" in str(error):
                raise Rejected(f"The Redis key {stream} is not a stream.") from error
            raise Rejected(f"The Redis server cannot read the stream {stream}: {error}.") from error

    def _place(self) -> str:
        options: dict[str, Any] = self._client.get_connection_kwargs()
        if "path" in options:
            return str(options["path"])
        return f"{options.get('host')}:{options.get('port')}"


def _as_it_comes(answer: object, **options: object) -> object:
    """The client would make a dictionary of every entry, which takes longer than all else."""
    return answer


def _pairs(answer: list[Any]) -> dict[bytes, object]:
    return dict(zip(answer[::2], answer[1::2], strict=True))
