"""The names that the lesson takes from the module of the pipeline."""

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.stream import Environment, count, mean, tumbling

TIME = pa.timestamp("ms", tz="UTC")

env = Environment()
flights = env.from_arrow(
    pa.schema(
        [
            ("carrier", pa.string()),
            ("origin", pa.string()),
            ("dep_delay", pa.float64()),
            ("time_hour", TIME),
        ]
    ).empty_table(),
    uid="flights",
    timestamp_column="time_hour",
)
weather = env.from_arrow(
    pa.schema([("origin", pa.string()), ("time_hour", TIME), ("wind", pa.float64())]).empty_table(),
    uid="weather",
    timestamp_column="time_hour",
)

__all__ = ["count", "flights", "mean", "pc", "tumbling", "weather"]
