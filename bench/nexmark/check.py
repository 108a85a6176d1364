"""Does each query of Nexmark give the same result as Flink SQL on the same files?

Flink prints its changelog. The rows that remain of it are compared with those that remain of ours,
as multisets. If SQL leaves open which of several equal rows it keeps (q18, q19), only the columns
that it decides are compared. q12 is not compared, because its windows go by the clock.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from nexmark.flow import nexmark
from nexmark.queries import QUERIES

from bench.benchmark import Bar, Fields, at_most, progress
from bench.nexmark.peers import Flink
from bench.nexmark.runs import Events, committed
from pipelines.local import run_local
from tests.unit.nexmark.answers import decided, without_zone

CHECKED = Events(1_000_000, 10_000)
BARS: tuple[Bar, ...] = (at_most("not_same", 0),)
CHANGE = re.compile(r"(?:\d+> )?(?P<sign>[+-])(?P<kind>[IUD])\[(?P<row>\[.*\])\]")
UPSERT_KEYS = {"q9": ("auction",), "q18": ("bidder", "auction"), "q19": ("auction", "rank_number")}
"""The keys of rankings: for these, Flink emits the newest row of each key and takes none back."""

BY_THE_CLOCK = "q12"
DECIDED = {"q18": ["bidder", "auction", "date_time"], "q19": ["auction", "price", "rank_number"]}


@dataclass(slots=True)
class Printed:
    """The changes that Flink printed for one query: rows as texts, and `+I` or `-D` for each."""

    columns: list[str]
    kinds: list[str] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    has_updates: bool = False

    @property
    def form(self) -> str:
        if "-D" in self.kinds:
            return "changelog"
        return "upserts" if self.has_updates else "append"

    def table(self) -> pa.Table:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        texts = [pa.array(column, pa.string()) for column in columns]
        table = pa.table(texts, names=self.columns)
        if self.form == "upserts":
            return table
        return table.append_column("row_kind", pa.array(self.kinds, pa.string()))


def measure(queries: Sequence[str], events: Events) -> Fields:
    """Raises NotMeasured if Flink is not installed, or fails."""
    by_query = {query: of_query(query, events) for query in queries}
    return {
        "events": events.count,
        "not_same": sum(fields["same"] is False for fields in by_query.values()),
        "by_query": by_query,
    }


def printed_changes(said: str) -> Printed:
    """Parses the output of a program that prints the columns, then one line for each change."""
    printed = Printed([])
    for line in said.splitlines():
        if line.startswith("{") and "columns" in (header := json.loads(line)):
            printed = Printed(header["columns"])
        elif match := CHANGE.fullmatch(line):
            printed.kinds.append("+I" if match["sign"] == "+" else "-D")
            printed.rows.append(json.loads(match["row"]))
            printed.has_updates |= match["kind"] == "U"
    return printed


def of_query(query: str, events: Events) -> Fields:
    """`same` is None for a query that cannot be compared. Raises NotMeasured, like `measure`."""
    directory = events.files()
    printed = printed_changes(Flink(directory, events.count).printed(query))
    ours = our_result(query, directory)
    newest_by = QUERIES[query].newest_by
    form = "changelog" if "row_kind" in ours.column_names else "append"
    fields: Fields = {
        "same": None,
        "our_form": "running totals" if newest_by else form,
        "our_rows": ours.num_rows,
        "flink_form": printed.form,
        "flink_rows": len(printed.rows),
    }
    if query == BY_THE_CLOCK:
        return {**fields, "why_not": "Flink drops windows of the clock that are open at the end."}
    upsert_key = UPSERT_KEYS.get(query, ()) if printed.form == "upserts" else ()
    theirs = decided(query, printed.table(), upsert_key)
    found = difference(query, decided(query, ours, newest_by), theirs)
    fields["same"] = not found
    progress(f"{query}: {'the same' if not found else f'NOT the same: {found}'}; {fields}")
    return fields


def our_result(query: str, directory: Path) -> pa.Table:
    """Returns all rows that the pipeline commits over the files, in one process."""
    with tempfile.TemporaryDirectory(prefix="ftdash-nexmark-") as root:
        output = Path(root) / "output"
        parameters = {"query": query, "data": str(directory), "output": str(output)}
        run_local(nexmark, parameters=parameters)
        return committed(output)


def difference(query: str, ours: pa.Table, theirs: pa.Table) -> list[tuple[Any, ...]]:
    """Returns up to ten rows that one table has more often than the other. `theirs` has texts."""
    connection = duckdb.connect(config={"threads": 1})
    connection.register("ours", without_zone(ours))
    connection.register("theirs", theirs)
    relation = connection.table("ours")
    types = dict(zip(relation.columns, relation.types, strict=True))
    names = DECIDED.get(query, theirs.column_names)
    columns = ", ".join(f'"{name}"' for name in names)
    own = f"SELECT {columns} FROM ours"
    casts = ", ".join(f'CAST("{name}" AS {types[name]}) AS "{name}"' for name in names)
    other = f"SELECT {casts} FROM theirs"
    return connection.sql(
        f"SELECT 'missing', * FROM ({other} EXCEPT ALL {own}) UNION ALL"
        f" SELECT 'surplus', * FROM ({own} EXCEPT ALL {other}) LIMIT 10"
    ).fetchall()
