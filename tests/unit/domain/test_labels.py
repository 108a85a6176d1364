"""The labels that a savepoint may have."""

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.texts import LABEL_LENGTH_MAX, checked_label


@pytest.mark.parametrize(
    ("typed", "label"),
    [
        ("  before the upgrade ", "before the upgrade"),
        ("<b>vor dem Übergang</b> 🚀", "<b>vor dem Übergang</b> 🚀"),
        ("   ", ""),
        ("x" * LABEL_LENGTH_MAX, "x" * LABEL_LENGTH_MAX),
    ],
)
def test_a_label_is_one_line_of_text_without_blanks_around_it(typed: str, label: str) -> None:
    assert checked_label(typed) == label


def test_a_label_that_is_too_long_is_refused_with_its_length() -> None:
    with pytest.raises(Rejected, match="has 81 characters; a label may have 80"):
        checked_label("x" * 81)


@pytest.mark.parametrize("hidden", ["\n", "\0", "\u202e", "\u2028", "\ud800"])
def test_invisible_characters_are_refused(hidden: str) -> None:
    with pytest.raises(Rejected, match="cannot be seen"):
        checked_label(f"before{hidden}after")
