"""Directories with texts, and for copies of them."""

import tempfile
from pathlib import Path
from typing import Any

_ROOT = tempfile.TemporaryDirectory()
BOOKS, COPIES = Path(_ROOT.name) / "books", Path(_ROOT.name) / "copies"
BOOKS.mkdir()
COPIES.mkdir()
for number in range(4):
    lines = [f"line {line} of book {number}" for line in range(3_000)]
    (BOOKS / f"{number}.txt").write_text("\n".join(lines))


def check(names: dict[str, Any]) -> None:
    assert "test_lines_arrive_exactly_once" in names
    assert list(COPIES.glob("*.lines"))
    _ROOT.cleanup()
