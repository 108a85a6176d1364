"""Time as something passed in, and how long a request to a server may remain unanswered.

Durations come from `monotonic_ms`. Wall time is for display, and it is the processing time of
authors' pipelines. In a run, each connector decides how long it waits. A page waits for the answers
to its requests, so it gives each of them up sooner. The bound applies to each request, not to all
of them together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> float:
        """Never goes back; only differences have a meaning."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC. For display and processing time, nothing else."""
        ...


POSTGRESQL_CONNECT_S = 10.0
POSTGRESQL_SILENCE = {"tcp_user_timeout": 30_000, "keepalives_idle": 10, "keepalives_interval": 10}
"""libpq settings, in ms and s: if a server's machine vanishes, libpq gives up after 30 s, whether
it waits for an answer or for an acknowledgement of what it sent."""

_AT_MOST_S: ContextVar[float | None] = ContextVar("_AT_MOST_S", default=None)


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Bounds every request that this thread or task makes within the context."""
    before = _AT_MOST_S.set(seconds)
    try:
        yield
    finally:
        _AT_MOST_S.reset(before)


def patience_s(usual_s: float) -> float:
    """Returns how long one request may take: `usual_s` if no person waits."""
    at_most_s = _AT_MOST_S.get()
    return usual_s if at_most_s is None else min(usual_s, at_most_s)


def libpq_patience() -> dict[str, int]:
    """Settings for each connection to PostgreSQL, which its address may override.

    libpq takes whole seconds to connect, at least 2.
    """
    return {
        "connect_timeout": max(2, round(patience_s(POSTGRESQL_CONNECT_S))),
        **POSTGRESQL_SILENCE,
    }
