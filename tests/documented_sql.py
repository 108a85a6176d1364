"""Statements that the documentation tells people to run, as it has them."""

import re
from pathlib import Path


def documented(beginning: str) -> str:
    """The one block of SQL on the page of sinks that begins so."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "sinks.md").read_text()
    (statements,) = re.findall(rf"```sql\n({beginning}.*?)```", page, re.DOTALL)
    return str(statements)
