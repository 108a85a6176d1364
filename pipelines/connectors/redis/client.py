"""A client of a Redis server, and the meaning of its errors; no text here holds the password.

`Retryable`: the server is away, starts up, or accepts nothing at the moment. `Rejected`: it
refuses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from pipelines.connectors.sink import host_of
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.patience import patience_s

REDIS_PORT = 6379
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0


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
def asking(client: Any, wish: str) -> Iterator[None]:
    """`wish` says what was refused, such as `to read the stream x`. Other answers pass through."""
    try:
        yield
    except (redis.AuthenticationError, NoPermissionError) as error:
        raise Rejected(f"The Redis server refuses {wish}: check user and password.") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise Retryable(f"the Redis server {place_of(client)} does not answer") from error
