"""How long a server may be silent before whoever asks it is told so: less where a person waits.

A run waits as long as each connector finds right, for nobody looks on. What is asked for a page
holds its answer back, so there each question is given up sooner. It bounds one question, and not
how many there are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

POSTGRESQL_CONNECT_S = 10.0
POSTGRESQL_SILENCE = {"tcp_user_timeout": 30_000, "keepalives_idle": 10, "keepalives_interval": 10}
"""Of libpq, in ms and s: a server whose machine is gone without a word is given up after 30 s,
whether an answer or the end of what was sent is waited for."""

_AT_MOST_S: ContextVar[float | None] = ContextVar("_AT_MOST_S", default=None)


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """For every question that is asked within, by this thread or task."""
    before = _AT_MOST_S.set(seconds)
    try:
        yield
    finally:
        _AT_MOST_S.reset(before)


def patience_s(usual_s: float) -> float:
    """For one question; `usual_s` where nobody waits."""
    at_most_s = _AT_MOST_S.get()
    return usual_s if at_most_s is None else min(usual_s, at_most_s)


def libpq_patience() -> dict[str, int]:
    """For each connection to PostgreSQL, unless its address says otherwise.

    libpq takes whole seconds to connect, and 2 or more.
    """
    return {
        "connect_timeout": max(2, round(patience_s(POSTGRESQL_CONNECT_S))),
        **POSTGRESQL_SILENCE,
    }
