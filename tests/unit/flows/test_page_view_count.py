"""page_view_count: its operators, and which parameters it refuses."""

from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.flows.finding import find_flow


@pytest.mark.parametrize("key", ["app_id", "user_id"])
def test_views_are_counted_per_key_after_an_exchange_by_that_key(tmp_path: Path, key: str) -> None:
    pipeline = find_flow("page_view_count").build({"data": str(events(tmp_path)), "key": key})

    assert [vertex.uid for vertex in pipeline.graph.vertices] == ["events", "views"]
    assert pipeline.graph.vertex(Uid("views")).inputs[0].hash_by == (key,)
    assert pipeline.schemas[Uid("nowhere")].names == [key, "pv"]


def test_the_files_are_read_as_often_as_asked(tmp_path: Path) -> None:
    pipeline = find_flow("page_view_count").build({"data": str(events(tmp_path)), "repeat": "3"})

    source = pipeline.sources[Uid("events")]
    assert [source.split_id(index) is not None for index in range(4)] == [True] * 3 + [False]


@pytest.mark.parametrize(
    ("parameter", "value"), [("key", "ts"), ("repeat", "0"), ("repeat", "often"), ("repeat", "")]
)
def test_a_bad_parameter_is_refused_by_name_and_value(
    tmp_path: Path, parameter: str, value: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        find_flow("page_view_count").build({"data": str(events(tmp_path)), parameter: value})

    assert f"parameter {parameter!r} cannot be {value!r}" in str(refusal.value)


def test_a_directory_that_does_not_exist_is_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="nowhere"):
        find_flow("page_view_count").build({"data": str(tmp_path / "nowhere")})


def events(directory: Path) -> Path:
    (directory / "events.csv").write_text("1,10,100\n2,20,200\n")
    return directory
