"""Runs of flight_delays, and their expected output.

Their input is the first quarter of the year: the rest would add processor time and no proof. The
expected rows come from pandas, which shares no code with the engine.
"""

import sqlite3
from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from pipelines.connectors.files.input_files import write_listing
from pipelines.flows.flight_data import prepare

KEY = ["carrier", "window_start"]
STEP_S = 150.0  # the first step includes the start of Spark, on a busy machine
PACED = "250"  # event-hours per second: the quarter in about 9 s
MONTHS = 3
SOONER = {"execution.checkpointing.interval": "200 ms"}


def prepare_quarter(directory: Path) -> None:
    """Prepares the year, and keeps the files of the first months."""
    data = prepare(directory)
    for folder in (data.flights, data.weather):
        for file in sorted(folder.glob("*.parquet"))[MONTHS:]:
            file.unlink()
        write_listing(folder)


def parameters_for(flights: Path, root: Path, *, speed: str) -> dict[str, str]:
    return {
        "data": str(flights),
        "output": str(root / "output"),
        "sql": f"sqlite:///{root / 'output.sqlite3'}",
        "speed": speed,
    }


def assert_output_is_exact(flights: Path, root: Path) -> None:
    expected = batch_answer(flights)
    pd.testing.assert_frame_equal(files_output(root / "output"), expected, rtol=1e-9)
    pd.testing.assert_frame_equal(sql_output(root / "output.sqlite3"), expected, rtol=1e-9)


@cache
def batch_answer(flights: Path) -> pd.DataFrame:
    left = pd.read_parquet(flights / "flights").dropna(subset=["dep_delay"])
    right = pd.read_parquet(flights / "weather")[["origin", "time_hour", "wind_speed", "visib"]]
    joined = left.merge(right, on=["origin", "time_hour"])
    joined["window_start"] = joined["time_hour"].dt.floor("h")
    grouped = joined.groupby(KEY, as_index=False).agg(
        flights=("dep_delay", "size"),
        mean_dep_delay=("dep_delay", "mean"),
        max_dep_delay=("dep_delay", "max"),
        mean_wind_speed=("wind_speed", "mean"),
        mean_visib=("visib", "mean"),
    )
    return normalized(grouped)


def files_output(directory: Path) -> pd.DataFrame:
    finals = sorted(p for p in directory.glob("*.parquet") if p.name[0] not in "._")
    return normalized(pd.concat([pq.read_table(p).to_pandas() for p in finals]))


def sql_output(path: Path) -> pd.DataFrame:
    with sqlite3.connect(path) as connection:
        tables = connection.execute("select name from sqlite_master where type = 'table'")
        name = next(t for (t,) in tables.fetchall() if not t.startswith("ftdash"))
        return normalized(pd.read_sql(f"select * from {name}", connection))


def normalized(frame: pd.DataFrame) -> pd.DataFrame:
    times = pd.to_datetime(frame["window_start"], utc=True).astype("datetime64[ms, UTC]")
    columns = [*KEY, "flights", "mean_dep_delay", "max_dep_delay", "mean_wind_speed", "mean_visib"]
    ordered = frame.assign(window_start=times)[columns].sort_values(KEY).reset_index(drop=True)
    numbers = dict.fromkeys(columns[2:], "float64")
    return ordered.astype({"carrier": "object", **numbers})
