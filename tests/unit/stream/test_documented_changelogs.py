"""Each snippet of the pages about changelogs and chosen rows runs as it stands."""

import re
from pathlib import Path

import pytest

PAGES = ("changelogs.md", "choosing-rows.md")
REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
SNIPPETS = [
    pytest.param(snippet, id=f"{page}-{number}")
    for page in PAGES
    for number, snippet in enumerate(
        re.findall(r"```python\n(.*?)```", (REFERENCE / page).read_text(), re.DOTALL)
    )
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs(snippet: str) -> None:
    names: dict[str, object] = {}

    exec(compile(snippet, "snippet", "exec"), names)

    assert "env" in names


def test_the_page_has_snippets() -> None:
    assert SNIPPETS
