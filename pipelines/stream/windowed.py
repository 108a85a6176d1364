"""A keyed stream cut into windows of event time."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregates import Aggregate
from pipelines.operators.window_aggregate import WINDOW_START, WindowAggregate
from pipelines.operators.windows import TumblingWindows

if TYPE_CHECKING:
    from pipelines.stream.streams import Stream


@dataclass(frozen=True, slots=True)
class WindowedStream:
    stream: "Stream"
    keys: tuple[str, ...]
    windows: TumblingWindows

    def aggregate(self, *, uid: str, **aggregates: Aggregate) -> "Stream":
        """Keys, `window_start` and one column per aggregate, once per key and window."""
        keys, windows, time = self.keys, self.windows, event_time_of(self.stream)
        node = self.stream.environment.add_operator(
            uid,
            lambda: WindowAggregate(keys, time, windows, aggregates),
            (self.stream.connection(keys),),
        )
        return self.stream.derived(node, WINDOW_START)


def event_time_of(stream: "Stream") -> str:
    """Raises Rejected naming the stream that has none."""
    if stream.time_column is None:
        raise Rejected(f"{stream.node!r} has no event time, so it cannot be put into windows.")
    return stream.time_column
