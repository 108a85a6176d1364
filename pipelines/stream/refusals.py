"""Names the operator, by its author's uid, in front of what it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.domain.errors import Rejected


@contextmanager
def naming(uid: str) -> Iterator[None]:
    """Operators and sinks know their columns but not the name that the author gave them."""
    try:
        yield
    except Rejected as refusal:
        raise Rejected(f"{uid!r} cannot be built: {refusal}") from refusal
