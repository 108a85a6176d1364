"""People read only words that an operator would use: old unclear wording stays away."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNCLEAR = (
    "nothing runs, so nothing can die",
    "exceeded checkpoint tolerable failure threshold",
    "control connection ended",
    "nobody looks after",
    "dealt out anew",
    "zombies? refused",
)
SHOWN = [
    path
    for folder, pattern in (
        *(("templates", "*.html"), ("ftdash", "*.py"), ("pipelines", "*.py")),
        *(("static/js", "*.js"), ("docs", "*.md")),
    )
    for path in (ROOT / folder).rglob(pattern)
]


@pytest.mark.parametrize("wording", UNCLEAR)
def test_no_page_and_no_message_has_the_old_wording(wording: str) -> None:
    """Code breaks sentences, so quotes and line breaks between two words do not count."""
    gap = r"[\s\"'f]+"
    pattern = re.compile(wording.replace(" ", gap), re.IGNORECASE)
    found = [str(each.relative_to(ROOT)) for each in SHOWN if pattern.search(each.read_text())]

    assert len(SHOWN) > 500
    assert found == []
