"""A schema registry: which schema a record was written with, by the id in front of its bytes.

Speaks Confluent's REST interface and wire format: a zero byte, the schema's id as four bytes, then
the record. An id never changes its schema, so each id is looked up once. This module does not
interpret the schemas. No text contains a secret.

Source: Confluent's wire format.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.schema_registry_client import Schema

from pipelines.connectors.kafka.connection import ANSWER_TIMEOUT_S
from pipelines.domain.clock import patience_s
from pipelines.domain.errors import Rejected, Retryable

MAGIC = b"\x00"
HEADER_BYTES = 5
TRIES = 2
NOT_FOUND, REFUSED = 404, range(400, 500)
MAY_PASS = (408, 425, 429)

Answer = TypeVar("Answer")


class Unframed(Exception):
    """The bytes are not in the wire format; the message says why, in a clause."""


def unframed(value: bytes) -> tuple[int, bytes]:
    """Returns the schema's id, and the record. Raises Unframed."""
    if len(value) < HEADER_BYTES:
        raise Unframed(f"its {len(value)} bytes are too few for a schema id")
    if value[:1] != MAGIC:
        raise Unframed(
            f"it begins with the byte {value[0]}, where a schema id has a zero before it"
        )
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


def header_of(schema_id: int) -> bytes:
    return MAGIC + schema_id.to_bytes(HEADER_BYTES - 1, "big")


class UnknownSchema(Exception):
    """The registry has no schema with that id; the message says so, in a clause."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Where a schema registry is. Naming it contacts nothing.

    Args:
        url: `http://` or `https://`, without user and password.
        security: `basic.auth.user.info` (`user:password`), `bearer.auth.token`, `ssl.ca.location`,
            `ssl.certificate.location`, `ssl.key.location` and `ssl.key.password`, as Confluent's
            client takes them. They are secrets.
    """

    url: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        scheme, separator, rest = self.url.partition("://")
        if not separator or scheme not in ("http", "https"):
            raise Rejected("The address of a schema registry begins with http:// or https://.")
        if "@" in rest:
            raise Rejected(
                "The address of a schema registry holds no password; give basic.auth.user.info in"
                " its security."
            )

    def open(self) -> "OpenRegistry":
        return OpenRegistry(self)


class OpenRegistry:
    """Belongs to one reader or writer.

    Each question raises Retryable if the registry does not answer, and Rejected if it refuses.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._url = registry.url
        settings = {
            "timeout": patience_s(ANSWER_TIMEOUT_S),
            "max.retries": TRIES,
            **registry.security,
            "url": registry.url,
        }
        try:
            self._client = SchemaRegistryClient(settings)
        except (ValueError, TypeError, OSError):
            raise Rejected(
                f"The settings for the schema registry {registry.url} make no sense to its client;"
                " check the names, values and files of its security settings."
            ) from None  # its text may repeat a setting

    def schema(self, schema_id: int, *, form: str | None = None) -> Schema:
        """Raises UnknownSchema."""
        try:
            return self._ask(lambda: self._client.get_schema(schema_id, fmt=form))
        except _NotFound:
            raise UnknownSchema(
                f"the schema registry {self._url} has no schema {schema_id}"
            ) from None

    def version(self, subject: str, version: int) -> Schema:
        """Returns a schema that another one refers to. Raises UnknownSchema."""
        try:
            found = self._ask(lambda: self._client.get_version(subject, version))
        except _NotFound:
            raise UnknownSchema(
                f"the schema registry {self._url} has no version {version} of subject {subject}"
            ) from None
        return found.schema

    def register(self, subject: str, schema: Schema) -> int:
        """Returns the id of the schema, which is the same each time."""
        try:
            return self._ask(lambda: self._client.register_schema(subject, schema))
        except _NotFound:
            raise Rejected(f"The schema registry {self._url} takes no subject {subject}.") from None

    def check_takes(self, subject: str, schema: Schema) -> None:
        """Raises Rejected if the schema is not compatible with the subject's newest version.

        Changes nothing.
        """
        try:
            fits = self._ask(lambda: self._client.test_compatibility(subject, schema))
        except _NotFound:
            return  # there is no such subject yet
        if not fits:
            raise Rejected(
                f"The schema registry {self._url} does not take the schema of subject {subject}: it"
                " is not compatible with the newest version. Change the columns, write to another"
                " topic, or relax the subject's compatibility."
            )

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == NOT_FOUND:
                raise _NotFound from None
            if status in REFUSED and status not in MAY_PASS:
                raise Rejected(
                    f"The schema registry {self._url} refuses the request ({status}"
                    f" {_words(error)})."
                ) from None
            raise Retryable(f"The schema registry {self._url} fails ({status})") from None
        except (httpx.HTTPError, OSError) as error:
            name = type(error).__name__
            raise Retryable(f"The schema registry {self._url} does not answer ({name})") from None


class _NotFound(Exception):
    pass


def _words(error: Any) -> str:
    return str(error.error_message).split("\n")[0][:200].rstrip(".")
