"""Puts the author's name of an operator in front of what it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.domain.errors import Rejected


@contextmanager
def naming(uid: str) -> Iterator[None]:
    """Operators and sinks know their columns but not what the author called them."""
    try:
        yield
    except Rejected as refusal:
        raise Rejected(f"{uid!r} cannot be built: {refusal}") from refusal
