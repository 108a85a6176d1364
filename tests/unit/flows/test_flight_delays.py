"""flight_delays: its operators, and which parameters it refuses."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.guarantees import end_to_end
from pipelines.domain.ids import Uid
from pipelines.domain.settings import CheckpointingMode
from pipelines.flows.finding import find_flow
from pipelines.flows.flight_delays import FLIGHTS, WEATHER
from pipelines.stream import Pipeline


def test_two_sources_meet_in_a_join_and_end_in_two_sinks(tmp_path: Path) -> None:
    graph = build(tmp_path).graph

    assert {vertex.uid: vertex.nodes for vertex in graph.vertices} == {
        "flights": ("flights", "departed"),
        "weather": ("weather",),
        "weather-at-departure": ("weather-at-departure", "hourly-delay.local"),
        "hourly-delay": ("hourly-delay", "delay-files", "delay-table"),
    }
    joined, hourly = graph.vertex(Uid("weather-at-departure")), graph.vertex(Uid("hourly-delay"))
    assert {edge.hash_by for edge in joined.inputs} == {("origin", "time_hour")}
    assert {edge.hash_by for edge in hourly.inputs} == {("carrier",)}


def test_the_output_has_the_promised_columns_with_times_in_utc(tmp_path: Path) -> None:
    schema = build(tmp_path).schemas[Uid("hourly-delay")]

    assert schema.names == [
        "carrier",
        "window_start",
        "flights",
        "mean_dep_delay",
        "max_dep_delay",
        "mean_wind_speed",
        "mean_visib",
    ]
    assert schema.field("window_start").type == pa.timestamp("ms", "UTC")


def test_the_table_sink_decides_the_guarantee(tmp_path: Path) -> None:
    found = end_to_end(CheckpointingMode.EXACTLY_ONCE, build(tmp_path).ends)

    assert found.guarantee == "exactly-once (idempotent)"


@pytest.mark.parametrize(("speed", "pace"), [("max", None), ("24", 24.0), ("0.5", 0.5)])
def test_speed_is_event_hours_per_second_or_as_fast_as_possible(
    tmp_path: Path, speed: str, pace: float | None
) -> None:
    assert build(tmp_path, speed=speed).pace == pace


@pytest.mark.parametrize(("forever", "is_endless"), [("true", True), ("false", False)])
def test_the_year_ends_unless_forever_is_set(
    tmp_path: Path, forever: str, is_endless: bool
) -> None:
    source = build(tmp_path, forever=forever).sources[Uid("flights")]

    assert (source.split_id(1_000) is not None) is is_endless


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("speed", "fast"),
        ("speed", "0"),
        ("speed", "-1"),
        ("speed", "nan"),
        ("speed", "inf"),
        ("forever", "yes"),
    ],
)
def test_a_bad_parameter_is_refused_by_name_and_value(
    tmp_path: Path, parameter: str, value: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        build(tmp_path, **{parameter: value})

    assert f"parameter {parameter!r} cannot be {value!r}" in str(refusal.value)


def test_a_directory_without_data_is_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="weather"):
        build(tmp_path, without="weather")


def build(directory: Path, *, without: str | None = None, **parameters: str) -> Pipeline:
    """Builds the pipeline over a month without rows."""
    for name, schema in (("flights", FLIGHTS), ("weather", WEATHER)):
        if name != without:
            (directory / "data" / name).mkdir(parents=True)
            pq.write_table(schema.empty_table(), directory / "data" / name / "2013-01.parquet")
    given = {
        "data": str(directory / "data"),
        "output": str(directory / "output"),
        "sql": f"sqlite:///{directory}/delays.db",
    }
    return find_flow("flight_delays").build({**given, **parameters})
