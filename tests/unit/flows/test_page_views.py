"""page_views: its operators, what it counts as an app, and what it refuses."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.guarantees import end_to_end
from pipelines.domain.ids import Uid
from pipelines.domain.settings import CheckpointingMode
from pipelines.flows.finding import find_flow
from pipelines.flows.page_view_feed import VIEWS, page_views
from pipelines.flows.page_view_variables import DATABASE, KAFKA, KAFKA_SECURITY, REDIS
from pipelines.flows.page_views import UNNAMED, with_app
from pipelines.stream import Pipeline

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def a_redis_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (DATABASE, KAFKA, KAFKA_SECURITY):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(REDIS, f"redis://:{SECRET}@127.0.0.1:1/0")


def test_views_are_counted_per_window_and_in_total_after_an_exchange_by_app(
    tmp_path: Path,
) -> None:
    graph = build(tmp_path).graph

    assert {vertex.uid: vertex.nodes for vertex in graph.vertices} == {
        "views": ("views", "with-app", "views-in-total.local", "views-per-window.local"),
        "views-per-window": ("views-per-window", "windows-files"),
        "views-in-total": ("views-in-total", "totals-files"),
    }
    for counting in ("views-per-window", "views-in-total"):
        assert [e.hash_by for e in graph.vertex(Uid(counting)).inputs] == [("app_id",)]


def test_each_result_has_the_app_the_window_and_the_views(tmp_path: Path) -> None:
    schemas = build(tmp_path).schemas

    assert schemas[Uid("windows-files")].names == ["app_id", "window_start", "views"]
    assert schemas[Uid("totals-files")].names == ["app_id", "views"]


def test_the_table_of_totals_decides_the_guarantee(tmp_path: Path) -> None:
    found = end_to_end(CheckpointingMode.EXACTLY_ONCE, build(tmp_path).ends)

    assert found.guarantee == "exactly-once (idempotent)"
    assert "'totals-files'" in found.reason


def test_views_without_a_valid_app_name_are_still_counted() -> None:
    given = [None, "", "app-1", "a b", "x" * 65, 'x";--', "a\x00b", "App.2_b"]
    rows = [{"app_id": app} for app in given]

    named = with_app(pa.RecordBatch.from_pylist(rows, schema=VIEWS))

    apps = [UNNAMED, UNNAMED, "app-1", UNNAMED, UNNAMED, UNNAMED, UNNAMED, "App.2_b"]
    assert named.column("app_id").to_pylist() == apps
    assert named.schema == VIEWS


def test_an_app_that_has_a_name_keeps_it() -> None:
    views = page_views(1, 0, 0, 1_000)

    assert with_app(views).equals(views)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("source", "files"),
        ("into", "mysql"),
        ("into", ""),
        ("into", "files,files"),
        ("target", "Views"),
        ("target", "views; drop table"),
        ("window_s", "0"),
        ("window_s", "1.5"),
        ("window_s", "86401"),
    ],
)
def test_a_bad_parameter_is_refused_by_name_and_value(
    tmp_path: Path, parameter: str, value: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        build(tmp_path, **{parameter: value})

    assert f"parameter {parameter!r} cannot be {value!r}" in str(refusal.value)


def test_files_without_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="'output'"):
        build(tmp_path, output="")


def test_an_unconfigured_redis_is_refused_naming_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REDIS)

    with pytest.raises(Rejected, match=f"needs the environment variable {REDIS}:"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("parameters", "variable"),
    [
        ({"source": "kafka"}, KAFKA),
        ({"into": "kafka"}, KAFKA),
        ({"into": "files,postgres"}, DATABASE),
    ],
)
def test_an_unconfigured_server_is_refused_naming_its_variable(
    tmp_path: Path, parameters: dict[str, str], variable: str
) -> None:
    with pytest.raises(Rejected, match=f"needs the environment variable {variable}:"):
        build(tmp_path, **parameters)


def test_malformed_security_settings_are_refused_without_their_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KAFKA, "127.0.0.1:1")
    monkeypatch.setenv(KAFKA_SECURITY, f'{{"sasl.password": ["{SECRET}"]}}')

    with pytest.raises(Rejected) as refusal:
        build(tmp_path, source="kafka")

    assert KAFKA_SECURITY in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("source", ["redis", "kafka"])
def test_the_description_of_a_pipeline_contains_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv(KAFKA, "127.0.0.1:1")
    monkeypatch.setenv(KAFKA_SECURITY, f'{{"sasl.password": "{SECRET}"}}')

    assert SECRET not in repr(build(tmp_path, source=source))


def build(directory: Path, **parameters: str) -> Pipeline:
    given = {"into": "files", "output": str(directory), **parameters}
    return find_flow("page_views").build(given)
