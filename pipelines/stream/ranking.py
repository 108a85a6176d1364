"""Builds operators that keep some rows of each key: the first, the last or the best."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import EdgeKind
from pipelines.operators.aggregating.aggregates import Aggregate, CountDistinct
from pipelines.operators.aggregating.aggregation import check_distinct
from pipelines.operators.changelog import refuse_changelogs
from pipelines.operators.ranking.deduplicate import (
    DistinctOfBatch,
    KeepBest,
    KeepFirst,
    MarkFirstValues,
)
from pipelines.operators.ranking.ranked_rows import Order
from pipelines.operators.ranking.top_n import BestRow, SessionTopN, TopN, WindowTopN
from pipelines.operators.windowing.windows import WINDOW_START, WINDOW_TIME, SessionWindows
from pipelines.state.entries import StateTtlConfig
from pipelines.stream.pipeline import naming

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.operators.operator import Operator
    from pipelines.stream.keyed import WindowedStream
    from pipelines.stream.streams import Stream

KEEPS = ("first", "last")
LOCAL_SUFFIX = ".local"
"""The suffix of the half before the exchange, added to the uid."""

DISTINCT_SUFFIX = ".distinct"
"""The suffix of the operator that keeps the distinct values, added to the aggregation's uid."""


def deduplicated(
    stream: "Stream",
    keys: tuple[str, ...],
    keep: str,
    order_by: str | None,
    ttl: timedelta | None,
    uid: str,
) -> "Stream":
    with naming(uid):
        if keep not in KEEPS:
            raise Rejected(f"There is no {keep!r} row to keep; choose 'first' or 'last'.")
        config = None if ttl is None else StateTtlConfig(ttl // timedelta(milliseconds=1))
        if keep == "first" and order_by is None:
            return _keyed(stream, keys, lambda: KeepFirst(keys, config), stream.time_column, uid)
        if ttl is not None:
            raise Rejected(
                "A row whose key was forgotten could not be taken back; leave out state_ttl, or"
                " keep the first row in order of arrival."
            )
    is_last = keep == "last"
    order = Order(order_by, descending=is_last, newest_first=is_last)
    return _keyed(stream, keys, lambda: KeepBest(keys, order), None, uid)


def first_rows(
    stream: "Stream", keys: tuple[str, ...], order: Order, n: int, rank: str | None, uid: str
) -> "Stream":
    return _keyed(stream, keys, lambda: TopN(keys, order, n, rank), None, uid)


def first_rows_of_windows(
    windowed: "WindowedStream", order: Order, n: int, rank: str | None, uid: str
) -> "Stream":
    keys, windows = windowed.operator_keys, windowed.windows
    with naming(uid):
        if windowed.lateness_ms:
            raise Rejected(
                "Its result comes once, when the window ends, and late rows cannot change it; leave"
                " out allowed_lateness."
            )
        if windowed.trigger_before_end is not None:
            raise Rejected("Its result comes once, when the window ends; leave out trigger.")
        time = windowed.operator_time
    if isinstance(windows, SessionWindows):
        sessions = windows
        return windowed.added(
            uid, lambda: SessionTopN(keys, time, sessions, order, n, rank), WINDOW_TIME
        )
    aligned = windows
    time_column = WINDOW_START if aligned.is_tumbling else WINDOW_TIME
    return windowed.added(uid, lambda: WindowTopN(keys, time, aligned, order, n, rank), time_column)


def best_row(stream: "Stream", keys: tuple[str, ...], order: Order, uid: str) -> "Stream":
    best = _keyed(stream, keys, lambda: BestRow(keys, order), stream.time_column, uid)
    stream.environment.note_updates(best.node, keys)
    return best


def distinct_rows(stream: "Stream", columns: tuple[str, ...], uid: str) -> "Stream":
    columns = columns or tuple(stream.schema.names)
    with naming(uid):
        refuse_changelogs([stream.is_changelog])
        check_distinct(list(columns))
        KeepFirst(columns).output_schema([stream.schema])
    time_column = stream.time_column if stream.time_column in columns else None
    local = stream.environment.add_operator(
        uid + LOCAL_SUFFIX,
        lambda: DistinctOfBatch(columns),
        (stream.connection(),),
        follows_input=stream.unkeyed is EdgeKind.FORWARD,
    )
    distinct = stream.derived(local, time_column)
    return _keyed(distinct, columns, lambda: KeepFirst(columns), time_column, uid)


def with_marks(
    stream: "Stream", keys: tuple[str, ...], aggregates: Mapping[str, Aggregate], uid: str
) -> "Stream":
    """Returns the stream with a mark for each count of distinct values."""
    counts = [each for each in aggregates.values() if isinstance(each, CountDistinct)]
    if not counts:
        return stream
    with naming(uid):
        refuse_changelogs([stream.is_changelog])
        MarkFirstValues(keys, counts).output_schema([stream.schema])
    create = lambda: MarkFirstValues(keys, counts)  # noqa: E731
    return _keyed(stream, keys, create, stream.time_column, uid + DISTINCT_SUFFIX)


def _keyed(
    stream: "Stream",
    keys: tuple[str, ...],
    create: "Callable[[], Operator]",
    time_column: str | None,
    uid: str,
) -> "Stream":
    with naming(uid):  # first, or else the error says that the column `row_kind` is taken
        refuse_changelogs([stream.is_changelog])
    node = stream.environment.add_operator(uid, create, (stream.connection(keys),))
    return stream.derived(node, time_column)
