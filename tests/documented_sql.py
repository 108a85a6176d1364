"""The SQL statements that the documentation asks users to run, taken from its pages."""

import re
from pathlib import Path


def documented(beginning: str) -> str:
    """Returns the only block of SQL on the sinks page that starts with `beginning`."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "sinks.md").read_text()
    (statements,) = re.findall(rf"```sql\n({beginning}.*?)```", page, re.DOTALL)
    return str(statements)
