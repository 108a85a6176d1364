"""The streams of a Redis server: entries as they come. Knows neither splits nor schemas."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import redis

from pipelines.connectors.redis.client import asking, client_of
from pipelines.connectors.redis.ids import id_of
from pipelines.connectors.redis.stream_extent import StreamExtent
from pipelines.domain.errors import Rejected

Entry = tuple[bytes, list[bytes]]
"""An id, and its fields and values in turn."""


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
            with asking(self._client, f"to read the stream {stream}"):
                yield
        except redis.ResponseError as error:
            if "no such key" in str(error):
                return
            if "WRONGTYPE" in str(error):
                raise Rejected(f"The Redis key {stream} is not a stream.") from error
            raise Rejected(f"The Redis server cannot read the stream {stream}: {error}.") from error


def _as_it_comes(answer: object, **options: object) -> object:
    """The client would make a dictionary of every entry, which takes longer than all else."""
    return answer


def _pairs(answer: list[Any]) -> dict[bytes, object]:
    return dict(zip(answer[::2], answer[1::2], strict=True))
