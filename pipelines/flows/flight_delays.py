"""The flow `flight_delays`: delays and weather per carrier and hour, over the flights of 2013.

Flights that departed are joined with the weather reading of their origin and hour, keyed by
carrier and aggregated in one-hour windows, into Parquet files and an SQL table.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors import ExactlyOnceFiles, ParquetFiles, SqlUpsert
from pipelines.stream import (
    Environment,
    Flow,
    Parameter,
    Pipeline,
    Rejected,
    count,
    max,
    mean,
    tumbling,
)

TIME = pa.timestamp("ms", tz="UTC")
FLIGHTS = pa.schema(
    [
        ("carrier", pa.string()),
        ("origin", pa.string()),
        ("dep_delay", pa.float64()),
        ("time_hour", TIME),
    ]
)
WEATHER = pa.schema(
    [
        ("origin", pa.string()),
        ("time_hour", TIME),
        ("wind_speed", pa.float64()),
        ("visib", pa.float64()),
    ]
)
YEAR_MS = 365 * 24 * 3_600_000
BATCH_ROWS = 8_192


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment(pace=_pace(parameters["speed"]))
    data, forever = Path(parameters["data"]), _flag("forever", parameters["forever"])
    flights = env.source(_files(data / "flights", FLIGHTS, forever), uid="flights")
    weather = env.source(_files(data / "weather", WEATHER, forever), uid="weather")
    hourly = (
        flights.filter(pc.field("dep_delay").is_valid(), uid="departed")
        .join(
            weather,
            on=["origin", "time_hour"],
            window=tumbling(hours=1),
            uid="weather-at-departure",
        )
        .key_by("carrier")
        .window(tumbling(hours=1))
        .aggregate(
            flights=count(),
            mean_dep_delay=mean("dep_delay"),
            max_dep_delay=max("dep_delay"),
            mean_wind_speed=mean("wind_speed"),
            mean_visib=mean("visib"),
            uid="hourly-delay",
        )
    )
    hourly.sink(
        ExactlyOnceFiles(Path(parameters["output"]), pipeline="flight_delays"), uid="delay-files"
    )
    keys = ("carrier", "window_start")
    table = SqlUpsert(parameters["sql"], "flight_delays", keys, pipeline="flight_delays")
    hourly.sink(table, uid="delay-table")
    return env.build()


def _files(directory: Path, schema: pa.Schema, forever: bool) -> ParquetFiles:
    return ParquetFiles(
        directory,
        schema=schema,
        timestamp_column="time_hour",
        forever=forever,
        cycle_shift_ms=YEAR_MS,
        batch_rows=BATCH_ROWS,
    )


def _pace(speed: str) -> float | None:
    if speed == "max":
        return None
    try:
        event_hours_per_s = float(speed)
    except ValueError:
        event_hours_per_s = 0.0
    if not 0.0 < event_hours_per_s < 1e9:
        raise Rejected(
            f"The parameter 'speed' cannot be {speed!r}; give 'max' or event-hours per second, "
            "such as 24."
        )
    return event_hours_per_s


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise Rejected(f"The parameter {name!r} cannot be {value!r}; give 'true' or 'false'.")
    return value == "true"


FLOW = Flow(
    name="flight_delays",
    summary="Delays and weather per carrier and hour, over the flights from New York in 2013.",
    parameters=(
        Parameter("data", None, "directory with flights/ and weather/, one Parquet file a month"),
        Parameter("output", None, "directory of the exactly-once Parquet files"),
        Parameter("sql", None, "database URL of the upserted table, such as sqlite:////tmp/a.db"),
        Parameter("speed", "max", "'max', or event-hours per second"),
        Parameter("forever", "false", "'true' starts the year again, shifted, when it ends"),
    ),
    assemble=assemble,
)
