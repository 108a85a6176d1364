"""A real Redis-protocol server that keeps its entries when it is killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ftdash.embedded.installation import LOOPBACK, RedisAddress, find_redis_server, new_address
from tests.brokers.processes import ServerProcess
from tests.reserved_ports import reserved_port

START_S = 20.0
NOWHERE = (LOOPBACK, 1)


@dataclass(frozen=True, slots=True)
class RedisBroker:
    address: RedisAddress
    server: ServerProcess

    @property
    def url(self) -> str:
        return self.address.url

    def client(self) -> "redis.Redis[Any]":
        return redis.Redis.from_url(self.url)

    @contextmanager
    def without_master(self) -> Iterator[None]:
        """Makes the server answer MASTERDOWN, like a replica that has lost its master."""
        with self.client() as client:
            client.config_set("replica-serve-stale-data", "no")
            client.replicaof(*NOWHERE)
            try:
                yield
            finally:
                client.replicaof("NO", "ONE")


@contextmanager
def redis_broker(directory: Path, *, more_settings: str = "") -> Iterator[RedisBroker]:
    """Starts a server. Its port stays reserved while it is down, so it can always start again."""
    with reserved_port() as port:
        yield from _broker(directory, replace(new_address(), port=port), more_settings)


def _broker(directory: Path, address: RedisAddress, more_settings: str) -> Iterator[RedisBroker]:
    configuration = directory / "redis.conf"
    configuration.write_text(
        f"bind {LOOPBACK}\nport {address.port}\nrequirepass {address.password}\n"
        f'dir "{directory}"\nsave ""\nappendonly yes\nappendfsync always\n'
        f"{more_settings}\n"
    )
    command = [str(find_redis_server().executable), str(configuration)]
    server = ServerProcess(
        command, directory / "redis.log", lambda: _answers(address), within_s=START_S
    )
    server.start()
    try:
        yield RedisBroker(address, server)
    finally:
        server.kill()


def _answers(address: RedisAddress) -> bool:
    """Asks once: by default the client would wait for seconds before it asks again."""
    try:
        return bool(redis.Redis.from_url(address.url, retry=Retry(NoBackoff(), 0)).ping())
    except redis.ConnectionError:
        return False
