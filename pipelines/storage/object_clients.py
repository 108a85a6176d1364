"""The clients of object stores: one per bucket, with every bound in one place.

The library retries (5xx, dropped connections, timeouts) within the bounds set here. We never pass
credentials: the library finds them in the environment or asks for the machine's role.
"""

import os
import threading
from dataclasses import dataclass
from datetime import timedelta

from obstore.store import S3Store

from pipelines.storage.roots import ObjectPrefix

MACHINE_ROLE_ADDRESS = "//169.254.169.254/"
"""Where the library asks for the machine's role if it has found no other credentials."""
NO_CREDENTIALS = (
    "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment,"
    " or give the machine a role"
)
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreLimits:
    """How long one request may take, how often it is retried, and how much is held in memory."""

    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    retries: int = 5
    first_backoff_ms: int = 50
    max_backoff_ms: int = 5_000
    retry_timeout_ms: int = 60_000
    part_bytes: int = 8 << 20
    concurrent_parts: int = 2


class ObjectClients:
    def __init__(self, limits: ObjectStoreLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._by_bucket: dict[str, S3Store] = {}

    def of(self, prefix: ObjectPrefix) -> S3Store:
        with self._lock:
            if prefix.bucket not in self._by_bucket:
                self._by_bucket[prefix.bucket] = self._client(prefix.bucket)
            return self._by_bucket[prefix.bucket]

    def _client(self, bucket: str) -> S3Store:
        limits = self._limits
        return S3Store(
            bucket,
            # The server recomputes it, and refuses bytes that were altered on their way.
            checksum_algorithm="SHA256",
            client_options={
                "timeout": _duration(limits.request_timeout_ms),
                "connect_timeout": _duration(limits.connect_timeout_ms),
                "allow_http": _endpoint_is_plain(),
            },
            retry_config={
                "max_retries": limits.retries,
                "retry_timeout": _duration(limits.retry_timeout_ms),
                "backoff": {
                    "init_backoff": _duration(limits.first_backoff_ms),
                    "max_backoff": _duration(limits.max_backoff_ms),
                    "base": 2,
                },
            },
        )


def reason_of(error: Exception) -> str:
    """The first line of the library's message; the rest is its inner structure."""
    lines = str(error).splitlines()
    said = lines[0].strip() if lines else type(error).__name__
    return f"{NO_CREDENTIALS} ({said})" if MACHINE_ROLE_ADDRESS in said else said


def _endpoint_is_plain() -> bool:
    """Allows a connection without TLS only if the operator has configured such an endpoint."""
    named = (os.environ.get(variable, "") for variable in ENDPOINT_VARIABLES)
    return any(endpoint.startswith("http://") for endpoint in named)


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)
