"""Checks people's texts before they are stored, and hides secrets in texts that leave a process.

A label of a savepoint is a short line of text, which pages escape as usual. Text that holds a
password is refused. The check looks for what people paste: addresses with a password in them, and
settings of clients. It does not find passwords hidden in other ways.

`masked` hides what this process has revealed (`stream.parameters.Secret`) in texts that are stored,
sent or shown. `storable` replaces the characters that some store cannot hold.
"""

import re
import unicodedata
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

from pipelines.domain.errors import Rejected

LABEL_LENGTH_MAX = 80


def checked_label(text: str) -> str:
    """Returns the label without surrounding blanks; an empty one means none.

    Raises Rejected if it is too long or not a single line.
    """
    label = text.strip()
    if len(label) > LABEL_LENGTH_MAX:
        raise Rejected(
            f"The label has {len(label)} characters; a label may have {LABEL_LENGTH_MAX}."
        )
    # Control characters, and those that change the direction of the text around them.
    if any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in label):
        raise Rejected("The label holds a character that cannot be seen; take plain text.")
    return label


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


MASK = "***"
SHORTEST = 4
"""A shorter secret is part of too many words, and too easily guessed to be one."""

_NAMED_SECRET = re.compile(
    r"(^|[._-])(password|passwd|pwd|secret|token|credentials?|api[._-]?key|private[._-]?key)s?$",
    re.IGNORECASE,
)
_revealed: set[str] = set()
"""Every spelling of each secret. It only ever grows, and a set is added to in one step."""


def remember_secret(value: str) -> bool:
    """Makes `masked` hide it in every spelling that our texts use. Returns False if known."""
    spellings = {value, repr(value)[1:-1], quote(value, safe=""), quote_plus(value)}
    spellings |= {line.strip() for line in value.splitlines()}
    new = {each for each in spellings if len(each) >= SHORTEST} - _revealed
    _revealed.update(new)
    return bool(new)


def masked(text: str) -> str:
    """The text, storable, without any secret that this process has revealed."""
    for secret in sorted(_revealed, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return storable(text)


def storable(text: str) -> str:
    """Shows NUL as its symbol, and a lone surrogate as a question mark.

    PostgreSQL stores no NUL, and UTF-8 has no lone surrogate, but an error's message may hold both.
    """
    return text.replace("\0", "\u2400").encode(errors="replace").decode()


def message_of(error: BaseException) -> str:
    """Returns the error's message; "" if it has none or cannot say it: an author's may raise."""
    try:
        return str(error)
    except Exception:
        return ""


def is_secret_value(name: str, value: object) -> bool:
    """True if a field of this name, or with this value, is taken to hold a secret."""
    return _NAMED_SECRET.search(name) is not None or holds_password(str(value))
