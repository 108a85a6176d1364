"""Each of Flink's failure reasons either occurs, or the table says why it cannot."""

import re
from pathlib import Path

from pipelines.domain.checkpoint_failures import CheckpointFailureReason

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "checkpoints.md"
TABLE = ROOT / "pipelines" / "domain" / "checkpoint_failures.py"


def test_the_document_lists_exactly_the_failure_reasons_that_the_engine_gives() -> None:
    files = [f for f in (ROOT / "pipelines").rglob("*.py") if f != TABLE]
    given = {n for f in files for n in re.findall(r"CheckpointFailureReason\.([A-Z_]+)", read(f))}

    occur, never = read(PAGE).split("These do not, because")

    assert documented(occur) == given
    assert documented(never) == {reason.name for reason in CheckpointFailureReason} - given


def test_the_table_explains_each_reason_that_never_occurs() -> None:
    _, never = read(PAGE).split("These do not, because")

    explained = set(re.findall(r"# Never: [^A-Z_]*?(?:\n    # .*?)*\n    ([A-Z_]+) =", read(TABLE)))

    assert explained == documented(never)


def documented(text: str) -> set[str]:
    names = {reason.name for reason in CheckpointFailureReason}
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"[A-Z_]{5,}", row) if name in names}


def read(path: Path) -> str:
    return path.read_text()
