"""Builds joins of two streams: in windows, in an interval of time, without limit, to a table."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.operators.joining.stream_join import JOIN_TIME, Interval, IntervalJoin, StreamJoin
from pipelines.operators.joining.temporal_join import (
    EventTimeTemporalJoin,
    ProcessingTimeTemporalJoin,
)
from pipelines.operators.joining.window_join import (
    JoinedColumns,
    JoinKind,
    SessionJoin,
    Suffixes,
    WindowedJoin,
    WindowJoin,
    has_bounds,
)
from pipelines.operators.windowing.windows import WINDOW_TIME, SessionWindows, Windows
from pipelines.stream.keyed import event_time_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.operators.operator import Operator
    from pipelines.stream.streams import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinInputs:
    """Two streams, the columns that are equal in a pair, and the suffixes of shared names."""

    left: "Stream"
    right: "Stream"
    on: tuple[str, ...]
    suffixes: Suffixes
    uid: str

    @property
    def times(self) -> tuple[str, str]:
        """Raises Rejected if a stream has no event time."""
        return event_time_of(self.left), event_time_of(self.right)

    @property
    def left_time(self) -> str:
        """Returns the name that the output gives to the left event time."""
        return self.output_name(self.times[0])

    def output_name(self, left_column: str) -> str:
        """Returns the name that a column of the left stream has in the output."""
        left, right = self.left.schema, self.right.schema
        columns = JoinedColumns.of(self.on, left, right, self.suffixes)
        return columns.output_name(left_column, left)

    def added(self, create: "Callable[[], Operator]") -> Uid:
        inputs = (self.left.connection(self.on), self.right.connection(self.on))
        return self.left.environment.add_operator(self.uid, create, inputs)


def join_in_windows(
    inputs: JoinInputs, windows: Windows, kind: JoinKind, *, names_window: bool
) -> "Stream":
    times = inputs.times
    node = inputs.added(lambda: _within(inputs, times, windows, kind, names_window=names_window))
    is_named = names_window or has_bounds(windows, kind)
    return inputs.left.derived(node, WINDOW_TIME if is_named else inputs.left_time)


def join_in_interval(inputs: JoinInputs, interval: Interval) -> "Stream":
    on, suffixes, times = inputs.on, inputs.suffixes, inputs.times
    node = inputs.added(lambda: IntervalJoin(on, times, interval, suffixes))
    return inputs.left.derived(node, JOIN_TIME)


def join_for_ever(inputs: JoinInputs, kind: JoinKind, ttl: timedelta | None) -> "Stream":
    ttl_ms = None if ttl is None else ttl // timedelta(milliseconds=1)
    on, suffixes = inputs.on, inputs.suffixes
    node = inputs.added(lambda: StreamJoin(on, kind, ttl_ms, suffixes))
    return inputs.left.derived(node, None)


def join_to_versions(inputs: JoinInputs, kind: JoinKind) -> "Stream":
    """Raises Rejected if a stream has no event time."""
    for stream in (inputs.left, inputs.right):
        if stream.time_column is None:
            raise Rejected(
                f"{inputs.uid!r} joins in event time, and {stream.node!r} has none. Put"
                " assign_timestamps in front, or set in_processing_time=True."
            )
    on, suffixes, times = inputs.on, inputs.suffixes, inputs.times
    node = inputs.added(lambda: EventTimeTemporalJoin(on, times, kind, suffixes))
    return inputs.left.derived(node, inputs.left_time)


def join_to_newest(inputs: JoinInputs, kind: JoinKind) -> "Stream":
    on, suffixes = inputs.on, inputs.suffixes
    node = inputs.added(lambda: ProcessingTimeTemporalJoin(on, kind, suffixes))
    time = inputs.left.time_column
    return inputs.left.derived(node, None if time is None else inputs.output_name(time))


def _within(
    inputs: JoinInputs,
    times: tuple[str, str],
    windows: Windows,
    kind: JoinKind,
    *,
    names_window: bool,
) -> WindowedJoin:
    on, suffixes = inputs.on, inputs.suffixes
    if isinstance(windows, SessionWindows):
        return SessionJoin(on, times, windows, kind, names_window=names_window, suffixes=suffixes)
    return WindowJoin(on, times, windows, kind, names_window=names_window, suffixes=suffixes)
