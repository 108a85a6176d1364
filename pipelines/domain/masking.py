"""Hides secrets in texts that are stored, sent or shown.

Knows what this process has revealed (`stream.parameters.Secret`), and what looks like a secret.
"""

import re
from urllib.parse import quote, quote_plus

from pipelines.domain.accepted_text import holds_password

MASK = "***"
SHORTEST = 4
"""A shorter secret is part of too many words, and too easily guessed to be one."""

_NAMED_SECRET = re.compile(
    r"(^|[._-])(password|passwd|pwd|secret|token|credentials?|api[._-]?key|private[._-]?key)s?$",
    re.IGNORECASE,
)
_revealed: set[str] = set()
"""Every spelling of each; only ever grows, and a set is added to in one step."""


def remember_secret(value: str) -> bool:
    """From now on `masked` hides it, in every spelling that texts of ours use. False: known."""
    spellings = {value, repr(value)[1:-1], quote(value, safe=""), quote_plus(value)}
    spellings |= {line.strip() for line in value.splitlines()}
    new = {each for each in spellings if len(each) >= SHORTEST} - _revealed
    _revealed.update(new)
    return bool(new)


def masked(text: str) -> str:
    """The text without any secret that this process has revealed."""
    for secret in sorted(_revealed, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def is_secret_value(name: str, value: object) -> bool:
    """True if a field of this name, or with this value, is taken to hold a secret."""
    return _NAMED_SECRET.search(name) is not None or holds_password(str(value))
