"""People's requests about a query's files, as they are stored with the work. Pure.

A batch is taken from the query's own directory, or from a savepoint of it.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pipelines.structured.fork import Boundaries
from pipelines.structured.preflight import Output

ROWS_MAX = 200
LABEL_LENGTH_MAX = 80
Place = Annotated[str, Meta(max_length=4_000)]


class TakeSavepoint(msgspec.Struct, frozen=True, kw_only=True):
    """`batch_id` None means the newest complete batch; `keep_days` None means without end."""

    label: str
    batch_id: int | None = None
    keeps_next: bool = False
    keep_days: float | None = None


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """From which batch to rewind, into which places.

    `savepoint` is the key of the row to start from; None means the query's directory.
    `output_target` is where the rewound output goes, or a new one of a file sink. `partitions` are
    those of the fork's state; None means as many as there are. `explained` is what the helper has
    written about the new code.
    """

    batch_id: int
    target: Place
    savepoint: int | None = None
    boundaries: Boundaries = Boundaries.NEW
    output: Output = Output.NEW
    output_target: Place = ""
    partitions: int | None = None
    explained: str = ""


class StatePlace(msgspec.Struct, frozen=True, kw_only=True):
    batch_id: int
    savepoint: int | None = None


class LookAtState(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one store or, with `other`, those that only one of the two places has.

    `key` is a part of the key as JSON; empty means all rows.
    """

    place: StatePlace
    other: StatePlace | None = None
    operator_id: int = 0
    store: str = "default"
    key: str = ""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a verdict."""

    check: str
    outcome: str
    text: str


class SavedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    is_possible: bool
    findings: list[Said]


class Dealt(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's answer to a repartition that changed no row."""

    compared_rows: int


class Forked(msgspec.Struct, frozen=True, kw_only=True):
    """`partitions` and `compared_rows` are for a fork whose state has other partitions."""

    location: str
    query_id: str
    next_batch: int
    file_count: int
    size_bytes: int
    output_target: str
    verdict: SavedVerdict
    partitions: int | None = None
    compared_rows: int = 0


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """Key and value as JSON objects that Spark wrote."""

    key: Any
    value: Any
    partition_id: int | None = None


class StateRows(msgspec.Struct, frozen=True, kw_only=True):
    """At most `ROWS_MAX` of each. `gained` is for a difference: rows of the other place alone."""

    rows: list[StateRow]
    count: int
    gained: list[StateRow] = []
    gained_count: int = 0
