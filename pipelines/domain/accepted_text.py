"""Checks text that people write before it is stored and shown: labels, and passwords by mistake.

A label of a savepoint is a short line of text, which pages escape as usual. Text that holds a
password is refused. The check looks for what people paste: addresses with a password in them, and
settings of clients. It does not find passwords hidden in other ways.
"""

import re
import unicodedata
from collections.abc import Mapping

from pipelines.domain.errors import Rejected

LABEL_LENGTH_MAX = 80


def checked_label(text: str) -> str:
    """The label without surrounding blanks; empty: none.

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
