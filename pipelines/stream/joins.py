"""Builds joins of two streams: within windows, within an interval of time, or for ever."""

from datetime import timedelta
from typing import TYPE_CHECKING

from pipelines.domain.ids import Uid
from pipelines.operators.joining.stream_join import JOIN_TIME, Interval, IntervalJoin, StreamJoin
from pipelines.operators.joining.window_join import (
    JoinKind,
    SessionJoin,
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


def join_in_windows(
    left: "Stream",
    right: "Stream",
    on: tuple[str, ...],
    windows: Windows,
    kind: JoinKind,
    uid: str,
) -> "Stream":
    times = (event_time_of(left), event_time_of(right))
    node = _add(left, right, on, lambda: _within(on, times, windows, kind), uid)
    return left.derived(node, WINDOW_TIME if has_bounds(windows, kind) else times[0])


def join_in_interval(
    left: "Stream",
    right: "Stream",
    on: tuple[str, ...],
    interval: Interval,
    uid: str,
) -> "Stream":
    times = (event_time_of(left), event_time_of(right))
    node = _add(left, right, on, lambda: IntervalJoin(on, times, interval), uid)
    return left.derived(node, JOIN_TIME)


def join_for_ever(
    left: "Stream",
    right: "Stream",
    on: tuple[str, ...],
    kind: JoinKind,
    ttl: timedelta | None,
    uid: str,
) -> "Stream":
    ttl_ms = None if ttl is None else ttl // timedelta(milliseconds=1)
    return left.derived(_add(left, right, on, lambda: StreamJoin(on, kind, ttl_ms), uid), None)


def _within(
    on: tuple[str, ...], times: tuple[str, str], windows: Windows, kind: JoinKind
) -> WindowedJoin:
    if isinstance(windows, SessionWindows):
        return SessionJoin(on, times, windows, kind)
    return WindowJoin(on, times, windows, kind)


def _add(
    left: "Stream",
    right: "Stream",
    on: tuple[str, ...],
    create: "Callable[[], Operator]",
    uid: str,
) -> Uid:
    inputs = (left.connection(on), right.connection(on))
    return left.environment.add_operator(uid, create, inputs)
