"""Refuses text that holds a password where that text would be stored and shown.

Looks for what people paste: addresses with a password in them, and settings of clients. Does not
find passwords hidden in other ways.
"""

import re
from collections.abc import Mapping

from pipelines.domain.errors import Rejected

PASSWORD = re.compile(
    r"://[^/?#\s@]*:[^/?#\s]+@|\b(password|passwd|pwd|secret|secret[._-]?key)\s*=", re.IGNORECASE
)


def holds_password(text: str) -> bool:
    return PASSWORD.search(text) is not None


def check_no_secrets(kind: str, values: Mapping[str, str]) -> None:
    """Raises Rejected naming which of `values` holds a password, but not the password."""
    for name, value in values.items():
        if holds_password(value):
            raise Rejected(
                f"The {kind} {name!r} holds a password, and would be stored and shown; let the"
                " pipeline read it from an environment variable."
            )
