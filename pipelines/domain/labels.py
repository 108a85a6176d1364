"""What a person may call a savepoint: a short line of text. Pages escape it like any other text."""

import unicodedata

from pipelines.domain.errors import Rejected

LABEL_LENGTH_MAX = 80


def checked_label(text: str) -> str:
    """The label without blanks around it; empty: none.

    Raises Rejected when it is too long for a line, or is no single line.
    """
    label = text.strip()
    if len(label) > LABEL_LENGTH_MAX:
        raise Rejected(
            f"The label has {len(label)} characters; a label may have {LABEL_LENGTH_MAX}."
        )
    # Control characters, and what turns the direction of the text around it.
    if any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in label):
        raise Rejected("The label holds a character that cannot be seen; take plain text.")
    return label
