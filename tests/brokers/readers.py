"""The readers that come with each system, started as users start them, without our code."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ftdash.embedded.installation import LOOPBACK
from tests.brokers.kafka_broker import KAFKA, KafkaBroker
from tests.brokers.redis_broker import RedisBroker
from tests.postgres_server import ROLE, PostgresServer

READ_S = 60.0
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


class ConsoleConsumer:
    """Kafka's own console consumer, which reads committed records from the beginning as they come.

    `topics` is a regular expression. The caller knows when the consumer has read everything, and
    ends it.
    """

    def __init__(self, broker: KafkaBroker, topics: str, said: Path) -> None:
        words = ["--bootstrap-server", broker.bootstrap_servers, "--include", topics]
        words += ["--isolation-level", "read_committed", "--from-beginning"]
        self._said = said
        with said.open("wb") as lines, said.with_suffix(".log").open("wb") as log:
            self._process = subprocess.Popen(
                KAFKA.command(CONSUMER, *words), stdout=lines, stderr=log
            )

    def __enter__(self) -> "ConsoleConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def lines(self) -> list[str]:
        """Returns the complete lines so far."""
        return self._said.read_text().rpartition("\n")[0].splitlines()


def psql(server: PostgresServer, query: str) -> list[list[str]]:
    """Returns rows as psql prints them, one word per column."""
    where = ["-h", LOOPBACK, "-p", str(server.port), "-U", ROLE, "-d", "postgres"]
    words = [server.program("psql"), *where, "-X", "-A", "-t", "-F", "|", "-c", query]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=READ_S)
    return [line.split("|") for line in said.stdout.splitlines()]


def redis_hashes(broker: RedisBroker, prefix: str, fields: list[str]) -> list[list[str]]:
    """Returns the fields of every hash that the sink wrote with that prefix."""
    keys = _redis_cli(broker, "--scan", "--pattern", f"{{{prefix}}}:row:*").splitlines()
    asked = "".join(f'HMGET "{key}" {" ".join(fields)}\n' for key in keys)
    lines = _redis_cli(broker, stdin=asked).splitlines()
    step = len(fields)
    assert len(lines) == step * len(keys)
    return [lines[start : start + step] for start in range(0, len(lines), step)]


def redis_cli_or_skip() -> str:
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if program is None:
        pytest.skip("there is no redis-cli on PATH to read with")
    return program


def _redis_cli(broker: RedisBroker, *words: str, stdin: str = "") -> str:
    where = ["-h", LOOPBACK, "-p", str(broker.address.port), "--raw"]
    return subprocess.run(
        [redis_cli_or_skip(), *where, *words],
        env={**os.environ, "REDISCLI_AUTH": broker.address.password},
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=READ_S,
    ).stdout
