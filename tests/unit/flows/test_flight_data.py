"""The prepared year: every row in order, in twelve files, written again if not complete."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.connectors import ParquetFiles
from pipelines.domain.errors import Rejected
from pipelines.flows import flight_data
from pipelines.flows.flight_data import FLIGHTS, WEATHER, FlightData, prepare

pytestmark = pytest.mark.slow
MONTHS = [f"2013-{month:02}.parquet" for month in range(1, 13)]
NULLS = {"dep_delay": 8_255, "tailnum": 2_512, "wind_speed": 4, "temp": 1}


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> FlightData:
    return prepare(tmp_path_factory.mktemp("year"))


@pytest.mark.parametrize(
    ("name", "schema", "count"), [("flights", FLIGHTS, 336_776), ("weather", WEATHER, 26_115)]
)
def test_every_row_of_the_year_is_there_once_in_order(
    year: FlightData, name: str, schema: pa.Schema, count: int
) -> None:
    source = ParquetFiles(getattr(year, name), schema=schema, timestamp_column="time_hour")

    tables = [pa.Table.from_batches(source.read(index, 0)) for index in range(12)]
    rows = pa.concat_tables(tables)

    assert [source.split_id(index) for index in range(13)] == [*MONTHS, None]
    assert rows.num_rows == count
    assert rows["time_hour"].to_pylist() == sorted(rows["time_hour"].to_pylist())
    nulls = {column: rows[column].null_count for column in schema.names}
    assert {c: n for c, n in nulls.items() if n} == {c: n for c, n in NULLS.items() if c in nulls}


def test_row_groups_are_small_enough_to_rewind_into(year: FlightData) -> None:
    metadata = pq.read_metadata(year.flights / MONTHS[0])

    assert max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)) == 5_000


def test_complete_data_is_not_written_again(
    year: FlightData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_data, "_read", lambda name, schema: pytest.fail("reads again"))

    assert prepare(year.flights.parent) == year


@pytest.mark.parametrize("damage", ["a file is gone", "a file is cut", "the listing is gone"])
def test_incomplete_data_is_written_again(tmp_path: Path, damage: str) -> None:
    data = prepare(tmp_path)
    before = contents(data.weather)
    match damage:
        case "a file is gone":
            (data.weather / MONTHS[3]).unlink()
        case "a file is cut":
            (data.weather / MONTHS[3]).write_bytes(b"PAR1")
        case "the listing is gone":
            (data.weather / "_files.json").unlink()

    prepare(tmp_path)

    assert contents(data.weather) == before


def test_a_missing_month_is_named_and_shifts_no_other(tmp_path: Path) -> None:
    data = prepare(tmp_path)
    (data.weather / MONTHS[3]).unlink()
    source = ParquetFiles(data.weather, schema=WEATHER)

    assert source.split_id(4) == MONTHS[4]
    with pytest.raises(Rejected, match=r"\(records from 0 on\) is gone: .*2013-04\.parquet is"):
        source.validate()


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}
