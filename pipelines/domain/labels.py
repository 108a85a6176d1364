"""Checks a person's label for a savepoint: a short line of text, which pages escape as usual."""

import unicodedata

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
