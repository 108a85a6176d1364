"""Finds the code snippets in the documentation and runs them.

An HTML comment above a snippet, invisible to readers, says why it cannot run, or that a shell
snippet can:

    <!-- not run: starts Spark -->
    <!-- run -->
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON, SHELL = "python", "sh"
SAID = re.compile(r"<!-- (?:(run)|not run: (\S.*)) -->")


@dataclass(frozen=True, slots=True)
class Snippet:
    """`excuse` is the reason in a comment why it does not run. `is_marked`: it has a comment."""

    page: Path
    line: int  # the number of its first line, from 1
    language: str
    text: str
    excuse: str
    is_marked: bool

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        return not self.excuse and (self.is_marked or self.language == PYTHON)


def snippets_of(page: Path) -> list[Snippet]:
    return list(_snippets(page))


def _snippets(page: Path) -> Iterator[Snippet]:
    before = ""
    for token in MarkdownIt().parse(page.read_text()):
        said = SAID.fullmatch(before.strip())
        if token.type == "fence" and token.map is not None:
            excuse = (said[2] or "") if said else ""
            line = token.map[0] + 2
            yield Snippet(page, line, token.info, token.content, excuse, said is not None)
        before = token.content if token.type == "html_block" else ""


def expect_python_runs(snippet: Snippet, names: dict[str, Any]) -> None:
    """Runs the code in `names`, which later snippets of the page share.

    Also calls the tests that the snippet declares, unless they need a fixture. A traceback gives
    the line of the page.
    """
    code = compile("\n" * (snippet.line - 1) + snippet.text, str(snippet.page), "exec")
    before = set(names)
    exec(code, names)
    tests = [name for name in names if name.startswith("test_") and name not in before]
    for test in tests:
        if not names[test].__code__.co_argcount:
            assert names[test]() is None, f"{snippet.name}: a test returns nothing"


def expect_shell_runs(snippets: list[Snippet], place: Path, environment: dict[str, str]) -> None:
    """Runs the snippets as one script, which ends at the first command that fails."""
    script = "".join(each.text for each in snippets)
    ran = subprocess.run(
        ["bash", "-euc", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, f"{snippets[0].name}: {ran.stdout}{ran.stderr}"
