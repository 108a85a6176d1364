"""Finds the servers that `page_views` reads and writes: the environment names them."""

import os

import msgspec

from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.domain.errors import UNDECODABLE, Rejected

REDIS = "FTDASH_VIEWS_REDIS_URL"
DATABASE = "FTDASH_VIEWS_DATABASE_URL"
KAFKA = "FTDASH_VIEWS_KAFKA"
KAFKA_SECURITY = "FTDASH_VIEWS_KAFKA_SECURITY"


def is_configured(variable: str) -> bool:
    return bool(os.environ.get(variable))


def redis_url() -> str:
    return _named(REDIS, "a Redis server, such as redis://:password@host:6379/0")


def database_url() -> str:
    return _named(
        DATABASE, "a PostgreSQL database, such as postgresql+psycopg://user:password@host/name"
    )


def kafka_address() -> KafkaAddress:
    return KafkaAddress(_named(KAFKA, "Kafka brokers, such as host:9092"), _kafka_security())


def _named(variable: str, what: str) -> str:
    """Raises Rejected naming the variable, never its value."""
    value = os.environ.get(variable)
    if not value:
        raise Rejected(
            f"The pipeline page_views needs the environment variable {variable}: {what}."
        )
    return value


def _kafka_security() -> dict[str, str]:
    try:
        return msgspec.json.decode(os.environ.get(KAFKA_SECURITY) or "{}", type=dict[str, str])
    except UNDECODABLE:
        # The text of the error may repeat a part of the value.
        raise Rejected(
            f"The environment variable {KAFKA_SECURITY} is no JSON object of texts, such as"
            ' {"security.protocol": "SASL_SSL"}.'
        ) from None
