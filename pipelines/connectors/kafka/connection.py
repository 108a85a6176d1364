"""How we reach and query Kafka, and what its errors mean. No text contains a secret.

All of its errors are `Retryable`: a broker that restarts, or has just received a partition, knows
neither topic nor user for a moment, and no run gives up its progress for that. Only a caller before
the start may treat an error as a refusal. This module reads no records.

A `KafkaAddress` has its security settings in the form of librdkafka; this module translates them
for kafka-python. They hold passwords.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakMethod

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    admin,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pipelines.domain.clock import patience_s
from pipelines.domain.errors import Rejected, Retryable

TURN_S = 0.5
ANSWER_TURNS = 20
ANSWER_TIMEOUT_S = TURN_S * ANSWER_TURNS
LEADER_PAUSE_S = 0.05
QUIET = 0
"""Suppresses what librdkafka would print; every error reaches us anyway."""

URL_SAFE = str.maketrans("+/", "-_")
"""Converts the client's spelling of an id to that of Kafka's tools."""

_untyped: Any = admin
EARLIEST, LATEST = _untyped.OffsetSpec.earliest(), _untyped.OffsetSpec.latest()

REFUSALS = {  # errors that a person can fix, if they last
    KafkaError._AUTHENTICATION: "refuses the user and password",
    KafkaError.SASL_AUTHENTICATION_FAILED: "refuses the user and password",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "does not let this user read the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "does not let this user in",
    KafkaError._SSL: "cannot be spoken to with TLS as it is set",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "knows no such topic or partition",
    KafkaError._UNKNOWN_TOPIC: "knows no such topic",
    KafkaError._UNKNOWN_PARTITION: "knows no such partition",
}


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Returns a callback for a client that the method's object holds.

    An object and a client that refer to each other, and the client's threads and connections, live
    until Python next looks for cycles, which in a driver may take an hour.
    """
    found = WeakMethod(method)

    def call(*given: object) -> None:
        bound = found()
        if bound is not None:
            bound(*given)

    return call


def answer_turns() -> int:
    """How many turns of `TURN_S` to wait for an answer; fewer while a person waits."""
    return max(1, round(patience_s(TURN_S * ANSWER_TURNS) / TURN_S))


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where the brokers are, and how to talk to them.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, with commas between them.
        security: librdkafka's `security.protocol`, `sasl.*` and `ssl.*`. It is a secret.
    """

    bootstrap_servers: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def settings(self, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "log_level": QUIET,
            "error_cb": on_error,
            **self.security,
        }

    @contextmanager
    def settings_are_understood(self) -> Iterator[None]:
        """Wraps the creation of a client. Raises Rejected in our own words.

        The client's words may repeat a setting, and so a password.
        """
        try:
            yield
        except (KafkaException, ValueError, TypeError):
            raise Rejected(
                f"The settings for Kafka at {self.bootstrap_servers} make no sense to it; check"
                " the names and values of its security settings."
            ) from None

    def translated(self, error: KafkaError) -> Retryable:
        refusal = REFUSALS.get(error.code())
        if refusal is not None:
            return Retryable(f"The Kafka broker {self.bootstrap_servers} {refusal}")
        return Retryable(f"Kafka at {self.bootstrap_servers} does not answer ({error.name()})")


class KafkaAdmin:
    """Asks about topics. Used for a few questions, then dropped."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._refusal: KafkaError | None = None
        with address.settings_are_understood():
            self._client = admin.AdminClient(address.settings(weakly(self._on_error)))

    def partitions(self, topic: str) -> int:
        """The number of partitions. Raises Retryable, also if the topic does not exist (yet)."""
        found = self._topic(topic)
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise Retryable(f"There is no topic {topic} at Kafka {self._address.bootstrap_servers}")
        if found.error is not None:
            raise self._address.translated(found.error)
        return len(found.partitions)

    def _topic(self, topic: str) -> Any:
        """Asks in short turns, because the client reports a refused login separately."""
        turns = answer_turns()
        for turn in range(turns):
            try:
                return self._client.list_topics(topic, timeout=TURN_S).topics[topic]
            except KafkaException as error:
                cause = self._cause(error)
                if cause.code() in REFUSALS or turn == turns - 1:
                    raise self._address.translated(cause) from error
        return None

    def await_leaders(self, topic: str) -> None:
        """Waits until each partition answers.

        After a broker has created a topic, it takes a moment until it knows the topic and leads its
        partitions. Raises Retryable.
        """
        tries = Retrying(
            retry=retry_if_exception_type(Retryable),
            stop=stop_after_delay(patience_s(ANSWER_TIMEOUT_S)),
            wait=wait_fixed(LEADER_PAUSE_S),
            reraise=True,
        )
        tries(self._ends, topic)

    def retention_ms(self, topic: str) -> int | None:
        """How long the topic keeps records; None: it deletes no record for its age."""
        resource = _untyped.ConfigResource(_untyped.ConfigResource.Type.TOPIC, topic)
        timeout_s = patience_s(ANSWER_TIMEOUT_S)
        futures = self._client.describe_configs([resource], request_timeout=timeout_s)
        try:
            found = futures[resource].result()
        except KafkaException as error:
            raise self._address.translated(self._cause(error)) from error
        kept_ms = int(found["retention.ms"].value)
        return None if kept_ms < 0 or "delete" not in found["cleanup.policy"].value else kept_ms

    def topic_ids(
        self, topics: Collection[str], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[str, str | None]:
        """The id of each topic as Kafka's tools show it; None: the brokers give topics no ids.

        Raises Retryable, also if one of them does not exist (any more).
        """
        wanted = TopicCollection(sorted(topics))
        answers = self._client.describe_topics(wanted, request_timeout=patience_s(timeout_s))
        try:
            return {topic: _text_of(answer.result().topic_id) for topic, answer in answers.items()}
        except KafkaException as error:
            raise self._address.translated(self._cause(error)) from error

    def oldest(self, partitions: Sequence[TopicPartition]) -> list[int]:
        return self._offsets(partitions, EARLIEST)

    def newest(self, partitions: Sequence[TopicPartition], *, committed_only: bool) -> list[int]:
        """The offset after the last record that a reader would see now, for each partition."""
        return self._offsets(partitions, LATEST, committed_only=committed_only)

    def _ends(self, topic: str) -> list[int]:
        partitions = [TopicPartition(topic, number) for number in range(self.partitions(topic))]
        return self.newest(partitions, committed_only=False)

    def _offsets(
        self,
        partitions: Sequence[TopicPartition],
        wanted: Any,
        *,
        committed_only: bool = False,
    ) -> list[int]:
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        futures = self._client.list_offsets(
            dict.fromkeys(partitions, wanted),
            isolation_level=level,
            request_timeout=patience_s(ANSWER_TIMEOUT_S),
        )
        try:
            return [int(futures[partition].result().offset) for partition in partitions]
        except KafkaException as error:
            raise self._address.translated(self._cause(error)) from error

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self._refusal = error

    def _cause(self, error: KafkaException) -> KafkaError:
        """Returns why a refused client gets no answer, which the client reports separately."""
        self._client.poll(0)
        refusal, self._refusal = self._refusal, None
        cause: KafkaError = refusal or error.args[0]
        return cause


def _text_of(topic_id: Any) -> str | None:
    """Returns None for zeros: brokers before version 2.8 have no ids and answer with zeros."""
    bits = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return str(topic_id).translate(URL_SAFE) if any(bits) else None


NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
VERIFIES_HOST = "ssl.endpoint.identification.algorithm"


def python_settings(address: KafkaAddress) -> dict[str, Any]:
    """Translates the settings. Raises Rejected naming a setting that has no counterpart."""
    timeout_ms = int(patience_s(ANSWER_TIMEOUT_S) * 1000)
    return {
        "bootstrap_servers": address.bootstrap_servers.split(","),
        "bootstrap_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms,
        **_security(address.security),
    }


def _security(security: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in security.items():
        if name == VERIFIES_HOST:
            settings["ssl_check_hostname"] = value != "none"
        elif name == "security.protocol":
            settings[NAMES[name]] = value.upper()
        elif name in NAMES:
            settings[NAMES[name]] = value
        else:
            raise Rejected(
                f"The security setting {name} is not known to Kafka sinks; they take"
                f" {', '.join([*NAMES, VERIFIES_HOST])}."
            )
    return settings
