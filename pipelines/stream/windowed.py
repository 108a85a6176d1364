"""A keyed stream cut into windows of event time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import Aggregate
from pipelines.operators.operator import Operator
from pipelines.operators.windowing.session_functions import SessionAggregate, SessionRows
from pipelines.operators.windowing.window_aggregate import WindowAggregate
from pipelines.operators.windowing.window_rows import WindowFunction, WindowRows
from pipelines.operators.windowing.windows import WINDOW_START, WINDOW_TIME, SessionWindows, Windows

if TYPE_CHECKING:
    from pipelines.stream.streams import Stream


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """Late rows are counted; read them with `result.side_output("late", uid=...)`."""

    stream: "Stream"
    keys: tuple[str, ...]
    windows: Windows
    lateness_ms: int = 0

    def allowed_lateness(self, lateness: timedelta) -> "WindowedStream":
        """Keeps windows that long beyond their end; each row that comes then updates the result.

        An updated result is emitted whole, after the earlier one, so that an upsert is right.
        """
        lateness_ms = lateness // timedelta(milliseconds=1)
        if lateness_ms < 0:
            raise Rejected(f"A lateness of {lateness_ms} ms cannot be allowed; give 0 or more.")
        return replace(self, lateness_ms=lateness_ms)

    def aggregate(self, *, uid: str, **aggregates: Aggregate) -> "Stream":
        """Keys, the window and one column per aggregate, once per key and window.

        `window_start` names a tumbling window and is the event time of its result. Any other window
        has `window_start`, `window_end` and `window_time`, its last millisecond, as the event time.
        """
        keys, windows, late = self.keys, self.windows, self.lateness_ms
        time = event_time_of(self.stream)
        if isinstance(windows, SessionWindows):
            sessions = windows
            create: Callable[[], Operator] = lambda: SessionAggregate(  # noqa: E731
                keys, time, sessions, aggregates, late
            )
            return self._added(uid, create, WINDOW_TIME)
        aligned = windows
        return self._added(
            uid,
            lambda: WindowAggregate(keys, time, aligned, aggregates, late),
            WINDOW_START if aligned.is_tumbling else WINDOW_TIME,
        )

    def apply(
        self,
        function: WindowFunction,
        schema: pa.Schema,
        *,
        uid: str,
        time_column: str | None = None,
    ) -> "Stream":
        """Call a function with all rows of each key and window; it returns rows of `schema`.

        Makes one Python call per key and window, and keeps every row until its windows are closed:
        where an aggregate will do, it costs far less. `time_column` is the event time of what the
        function returns, if it has one; it must not lie before the window.
        """
        keys, windows, late = self.keys, self.windows, self.lateness_ms
        time = event_time_of(self.stream)
        if isinstance(windows, SessionWindows):
            sessions = windows
            return self._added(
                uid,
                lambda: SessionRows(keys, time, sessions, function, schema, late),
                time_column,
            )
        aligned = windows
        return self._added(
            uid, lambda: WindowRows(keys, time, aligned, function, schema, late), time_column
        )

    def _added(self, uid: str, create: Callable[[], Operator], time_column: str | None) -> "Stream":
        inputs = (self.stream.connection(self.keys),)
        node = self.stream.environment.add_operator(uid, create, inputs)
        return self.stream.derived(node, time_column)


def event_time_of(stream: "Stream") -> str:
    """Raises Rejected naming the stream if it has none."""
    if stream.time_column is None:
        raise Rejected(f"{stream.node!r} has no event time, so it cannot be put into windows.")
    return stream.time_column
