"""Faults of the servers at the pipelines' ends, of the object store, and of the network."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

from bench.drill import incidents
from bench.drill.staging import PREPARED_MAX, Servers
from bench.soak import network
from bench.soak.fault_context import FaultContext
from bench.soak.flow import KAFKA_POSTGRES
from bench.soak.schedule import Fault
from ftdash.embedded.supervisor import wait_until
from pipelines.domain.errors import Rejected
from tests import object_server
from tests.brokers.kafka_broker import KafkaBroker
from tests.postgres_server import PostgresServer

FAULTY = (
    object_server.Fault.SERVER_ERROR,
    object_server.Fault.SLOW_DOWN,
    object_server.Fault.LOST_ANSWER,
    object_server.Fault.CUT_ANSWER,
    object_server.Fault.ALTERED,
)
LOST_SHARE = 0.2  # of all packets
LATE_S, AWAKE_S = 0.2, 0.05
"""A late server sleeps and works in turn, so that it answers up to `LATE_S` later."""

ANSWER_S = 60.0
ISR_SETTING, ISR_MIN = "min.insync.replicas", "1"
PARTITIONS_MAX = 8


def redis_away(context: FaultContext) -> None:
    context.for_its_length(incidents.stopped_broker)


def postgres_away(context: FaultContext) -> None:
    context.for_its_length(incidents.stopped_database)


def kafka_away(context: FaultContext) -> None:
    server = _kafka(context).server
    server.kill()
    try:
        time.sleep(context.length_s)
    finally:
        server.start()


def hung(server: str, context: FaultContext) -> None:
    """Makes a server hang: it accepts connections but never answers."""
    with _stops(context.staged.site.servers)[server]():
        time.sleep(context.length_s)


def servers_late(context: FaultContext) -> None:
    """Makes Redis, PostgreSQL and Kafka answer late, by stopping them again and again."""
    until_s = time.monotonic() + context.length_s
    while time.monotonic() < until_s:
        with ExitStack() as stopped:
            for stop in _stops(context.staged.site.servers).values():
                stopped.enter_context(stop())
            time.sleep(LATE_S)
        time.sleep(AWAKE_S)


def _stops(servers: Servers) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    found: dict[str, Callable[[], AbstractContextManager[None]]] = {}
    if servers.redis is not None:
        found["redis"] = servers.redis.server.stopped
    if servers.postgres is not None:
        found["postgres"] = servers.postgres.stopped
    if servers.kafka is not None:
        found["kafka"] = servers.kafka.server.stopped
    return found


def redis_refusing(context: FaultContext) -> None:
    server = context.staged.site.servers.redis
    if server is not None:
        with server.without_master():
            time.sleep(context.length_s)


def postgres_refusing(context: FaultContext) -> None:
    """Makes PostgreSQL refuse to write, like a standby before it takes over."""
    server = _postgres(context)
    _set(server, "on")
    try:
        time.sleep(context.length_s)
    finally:
        _set(server, "off")


def _set(server: PostgresServer, read_only: str) -> None:
    server.execute(f"alter system set default_transaction_read_only = {read_only}")
    server.execute("select pg_reload_conf()")


def kafka_refusing(context: FaultContext) -> None:
    """Makes Kafka answer NOT_ENOUGH_REPLICAS, as if a replica had fallen behind."""
    broker = _kafka(context)
    _set_replicas(broker, "2")
    try:
        time.sleep(context.length_s)
    finally:
        _set_replicas(broker, ISR_MIN)


def _set_replicas(broker: KafkaBroker, least: str) -> None:
    for topic in broker.admin().list_topics(timeout=ANSWER_S).topics:
        broker.set_topic(topic, ISR_SETTING, least)


def prepared_exhausted(context: FaultContext) -> None:
    """Prepares foreign transactions until PostgreSQL takes no more."""
    server, prepared = _postgres(context), list[str]()
    try:
        with (
            psycopg.connect(server.url, autocommit=True) as connection,
            suppress(psycopg.errors.OutOfMemory),  # PostgreSQL's code for this limit
        ):
            for number in range(PREPARED_MAX + 1):
                connection.execute("begin")
                connection.execute("select pg_current_xact_id()")
                connection.execute(f"prepare transaction 'soak-{number}'".encode())
                prepared.append(f"soak-{number}")
        time.sleep(context.length_s)
    finally:
        for each in prepared:
            server.execute(f"rollback prepared '{each}'")


def partition_added(context: FaultContext) -> None:
    """Adds a partition to the topic that the pipeline reads; the input spreads over all."""
    broker = _kafka(context)
    topics: Any = broker.admin().list_topics(KAFKA_POSTGRES, timeout=ANSWER_S).topics
    total = len(topics[KAFKA_POSTGRES].partitions) + 1
    if total > PARTITIONS_MAX:
        raise Rejected(f"the topic has {PARTITIONS_MAX} partitions already")
    broker.add_partitions(KAFKA_POSTGRES, total)


def record_poisoned(context: FaultContext) -> None:
    """Adds an entry whose number is no number; the run sets it aside."""
    server = context.staged.site.servers.redis
    if server is None:
        raise Rejected("there is no Redis")
    stream = f"{context.staged.name}-0"
    with server.client() as client:
        # A feed may come in between; the entry is then too old, and another id is tried.
        wait_until(
            lambda: _try_poison(client, stream),
            within_s=ANSWER_S,
            otherwise=lambda: f"the stream {stream} takes no entry",
        )


def _try_poison(client: Any, stream: str) -> bool:
    newest: Any = client.xrevrange(stream, count=1)
    number = newest[0][0].decode().partition("-")[0]
    try:
        client.xadd(stream, {"n": "poison"}, id=f"{number}-1")
    except redis.ResponseError:
        return False
    return True


def objects_away(context: FaultContext) -> None:
    """Breaks connections to the object store."""
    _objects_do(context, lambda _: object_server.Fault.CUT_UPLOAD)


def objects_faulty(context: FaultContext) -> None:
    """Makes one request in three fail, each time in another way."""
    ways = [way for fault in FAULTY for way in (fault, None, None)]
    _objects_do(context, lambda request: ways[request.number % len(ways)])


def objects_slow(context: FaultContext) -> None:
    _objects_do(context, lambda _: object_server.Fault.SLOW)


def objects_denied(context: FaultContext) -> None:
    """Makes the object store deny access, as while its rights are changed."""
    _objects_do(context, lambda _: object_server.Fault.DENIED)


def _objects_do(context: FaultContext, plan: object_server.Plan) -> None:
    if (server := context.staged.site.servers.objects) is not None:
        server.plan(plan)
        time.sleep(context.length_s)
        server.plan(object_server.never)


def servers_cut_off(context: FaultContext) -> None:
    """Cuts off Redis, PostgreSQL and Kafka: no packet gets to or from them."""
    with network.lossy(_ports_of(context.staged.site.servers)):
        time.sleep(context.length_s)


def slot_cut_off(context: FaultContext) -> None:
    """Cuts a slot off from its driver, the other slots and the servers that it is connected to."""
    with network.lossy(network.ports_in_use(context.slot)):
        time.sleep(context.length_s)


def bad_lines(context: FaultContext) -> None:
    """Drops some packets to and from the servers, so that data arrives late."""
    with network.lossy(_ports_of(context.staged.site.servers), LOST_SHARE):
        time.sleep(context.length_s)


def _ports_of(servers: Servers) -> set[int]:
    """Returns the ports of the servers at the pipelines' ends."""
    addresses = [server.url for server in (servers.redis, servers.postgres) if server is not None]
    if servers.kafka is not None:
        addresses.append(f"kafka://{servers.kafka.bootstrap_servers}")
    return {port for address in addresses if (port := urlsplit(address).port) is not None}


def _kafka(context: FaultContext) -> KafkaBroker:
    if (server := context.staged.site.servers.kafka) is None:
        raise Rejected("there is no Kafka")
    return server


def _postgres(context: FaultContext) -> PostgresServer:
    if (server := context.staged.site.servers.postgres) is None:
        raise Rejected("there is no PostgreSQL")
    return server


OF_SERVERS: Mapping[str, Mapping[Fault, Callable[[FaultContext], None]]] = {
    "redis": {
        Fault.REDIS_AWAY: redis_away,
        Fault.REDIS_AWAY_LONG: redis_away,
        Fault.REDIS_HUNG: partial(hung, "redis"),
        Fault.REDIS_REFUSING: redis_refusing,
        Fault.RECORD_POISONED: record_poisoned,
    },
    "postgres": {
        Fault.POSTGRES_AWAY: postgres_away,
        Fault.POSTGRES_AWAY_LONG: postgres_away,
        Fault.POSTGRES_HUNG: partial(hung, "postgres"),
        Fault.POSTGRES_REFUSING: postgres_refusing,
        Fault.PREPARED_EXHAUSTED: prepared_exhausted,
    },
    "kafka": {
        Fault.KAFKA_AWAY: kafka_away,
        Fault.KAFKA_AWAY_LONG: kafka_away,
        Fault.KAFKA_HUNG: partial(hung, "kafka"),
        Fault.KAFKA_REFUSING: kafka_refusing,
        Fault.PARTITION_ADDED: partition_added,
    },
    "objects": {
        Fault.OBJECTS_AWAY: objects_away,
        Fault.OBJECTS_AWAY_LONG: objects_away,
        Fault.OBJECTS_FAULTY: objects_faulty,
        Fault.OBJECTS_SLOW: objects_slow,
        Fault.OBJECTS_DENIED: objects_denied,
    },
}
"""Maps the name of a server in `Servers` to its faults."""

OF_PACKETS: Mapping[Fault, Callable[[FaultContext], None]] = {
    Fault.SERVERS_CUT_OFF: servers_cut_off,
    Fault.SLOT_CUT_OFF: slot_cut_off,
    Fault.BAD_LINES: bad_lines,
    Fault.BAD_LINES_LONG: bad_lines,
}
"""Faults that need lost packets."""
