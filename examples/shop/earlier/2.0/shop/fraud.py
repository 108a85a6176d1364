"""An alarm for each customer who spends too much within a minute.

The state has the sum that a customer spends in each minute of event time. A timer at the end of the
minute raises the alarm and deletes the minute.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pipelines.stream import KeyedProcessFunction, MapStateDescriptor, RowContext, RuntimeContext

from shop.columns import TIME

MINUTE_MS = 60_000
SPENT = pa.struct([("orders", pa.int64()), ("euro_cents", pa.int64())])
ALARMS = pa.schema(
    [
        ("customer", pa.string()),
        ("minute", TIME),
        ("orders", pa.int64()),
        ("euro_cents", pa.int64()),
    ]
)
NOTHING = {"orders": 0, "euro_cents": 0}


class Fraud(KeyedProcessFunction):
    def __init__(self, limit_cents: int) -> None:
        self._limit_cents = limit_cents

    def open(self, runtime: RuntimeContext) -> None:
        self._minutes = runtime.get_map_state(MapStateDescriptor("minutes", pa.int64(), SPENT))

    def process_element(self, row: dict[str, Any], context: RowContext) -> None:
        minute_ms = int(row["at"].timestamp() * 1_000) // MINUTE_MS * MINUTE_MS
        spent = self._minutes.get(minute_ms) or NOTHING
        self._minutes.put(
            minute_ms,
            {
                "orders": spent["orders"] + 1,
                "euro_cents": spent["euro_cents"] + row["euro_cents"],
            },
        )
        context.timer_service().register_event_time_timer(minute_ms + MINUTE_MS - 1)

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[dict[str, Any]]:
        minute_ms = timestamp_ms + 1 - MINUTE_MS
        spent = self._minutes.get(minute_ms)
        self._minutes.remove(minute_ms)
        if spent["euro_cents"] > self._limit_cents:
            minute = datetime.fromtimestamp(minute_ms // 1_000, UTC)
            yield {"customer": context.get_current_key(), "minute": minute, **spent}
