"""A pytest plugin with servers for the tests of a pipeline.

pytest finds it through the entry point `pytest11` of an installed ftdash. A server starts when the
first test asks for it, and ends with the session.
"""

from collections.abc import Iterator

import pytest

from pipelines.testing.servers import (
    ServerMissing,
    emptied,
    own_schema,
    postgres_server,
    redis_server,
)

SCHEMA = "test"


@pytest.fixture(scope="session")
def ftdash_postgres_server() -> Iterator[str]:
    """A PostgreSQL server of this session: the directory of its socket."""
    try:
        with postgres_server() as directory:
            yield directory
    except ServerMissing as missing:
        raise pytest.UsageError(str(missing)) from missing


@pytest.fixture
def ftdash_postgres(ftdash_postgres_server: str) -> str:
    """The URL of an empty PostgreSQL database, as `PostgresInsert` and `SqlUpsert` take it."""
    return own_schema(ftdash_postgres_server, SCHEMA)


@pytest.fixture(scope="session")
def ftdash_redis_server() -> Iterator[str]:
    """A Redis server of this session: its URL."""
    try:
        with redis_server() as url:
            yield url
    except ServerMissing as missing:
        raise pytest.UsageError(str(missing)) from missing


@pytest.fixture
def ftdash_redis(ftdash_redis_server: str) -> str:
    """The URL of an empty Redis server, as `RedisHashes` and `RedisStreams` take it."""
    return emptied(ftdash_redis_server)
