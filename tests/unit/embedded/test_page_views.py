"""The demonstration `page_views`: which variables it uses, and what it starts in which order."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from ftdash.embedded import demo, installation, page_views
from ftdash.embedded.demo import DemoOptions, services_for
from ftdash.embedded.installation import environment_of
from ftdash.embedded.page_views import PageViews
from ftdash.embedded.supervisor import Service
from pipelines.flows.page_view_variables import DATABASE, KAFKA, KAFKA_SECURITY, REDIS

VARIABLES = (REDIS, DATABASE, KAFKA, KAFKA_SECURITY)


@pytest.fixture(autouse=True)
def entered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings) -> None:
    """The environment of an installation on a bare machine."""
    settings.FTDASH_HOME = tmp_path
    outside = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for name, value in environment_of(tmp_path, 1, outside).items():
        monkeypatch.setenv(name, value)


def test_an_installation_has_a_redis_for_page_views_unless_one_was_given(monkeypatch) -> None:
    given = {REDIS: "redis://:secret@example.org/0"}
    kept = environment_of(Path("/somewhere"), 1, given)
    inner = environment_of(Path("/inner"), 2, dict(os.environ))

    assert installation.own_views_redis().url == os.environ[REDIS]
    assert os.environ[REDIS] != os.environ["FTDASH_REDIS_URL"]
    assert inner[REDIS] != os.environ[REDIS]
    assert kept[REDIS] == given[REDIS]
    monkeypatch.delenv(installation.EMBEDDED_VIEWS_VARIABLE)
    assert installation.own_views_redis() is None


def test_the_redis_persists_acknowledged_views_and_starts_before_the_feed(tmp_path: Path) -> None:
    started = list(PageViews(50.0).services())

    assert [service.name for service in started] == ["views-redis", "page-view-feed"]
    assert [service.ends_last for service in started] == [True, False]
    lines = (tmp_path / "views-redis" / "redis.conf").read_text().splitlines()
    assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"} <= set(lines)
    assert started[1].command[-2:] == ("--views-per-s", "50")
    assert os.environ[REDIS] not in str(started)


def test_by_default_page_views_reads_redis_and_writes_to_redis_and_files(submitted) -> None:
    PageViews().submit()

    assert submitted["parameters"]["source"] == "redis"
    assert submitted["parameters"]["input"] == "page-views-0,page-views-1"
    assert submitted["parameters"]["into"] == "redis,files"


def test_configured_systems_are_used_but_their_addresses_are_no_parameters(
    submitted, monkeypatch
) -> None:
    monkeypatch.setenv(KAFKA, "brokers.example.org:9092")
    monkeypatch.setenv(DATABASE, "postgresql+psycopg://ada:hunter2@example.org/views")

    PageViews().submit()

    assert submitted["parameters"]["source"] == "kafka"
    assert submitted["parameters"]["input"] == "page-views"
    assert submitted["parameters"]["into"] == "redis,postgres,kafka,files"
    assert "hunter2" not in str(submitted)
    assert "example.org" not in str(submitted)


def test_kafka_topics_exist_before_the_feed_starts(monkeypatch) -> None:
    monkeypatch.setenv(KAFKA, "brokers.example.org:9092")
    steps: list[str] = []
    monkeypatch.setattr(page_views, "provide_topics", lambda *names: steps.extend(names))

    for service in PageViews().services():
        steps.append(service.name)

    assert steps == ["views-redis", "page-views", "page_views", "page-view-feed"]
    assert service.command[3:5] == ("--to", "kafka")


def test_the_output_names_the_configured_systems(monkeypatch) -> None:
    monkeypatch.setenv(KAFKA, "brokers.example.org:9092")
    monkeypatch.setenv(DATABASE, "postgresql+psycopg://ada:hunter2@example.org/views")
    monkeypatch.delenv(installation.EMBEDDED_VIEWS_VARIABLE)

    said = "\n".join(PageViews().output())

    assert f"the Redis of {REDIS}" in said
    assert "page_views_totals in postgres" in said
    assert "page_views_totals in kafka" in said
    assert "hunter2" not in said


def test_the_output_contains_no_password() -> None:
    password = installation.own_views_redis().password

    assert password not in "".join(PageViews().output())


def test_a_feed_is_ready_once_every_split_has_views(redis_server, monkeypatch) -> None:
    monkeypatch.setenv(REDIS, redis_server.url)
    client = redis_server.client()

    assert not page_views.has_views()
    client.xadd("page-views-0", {"app_id": "a"})
    assert not page_views.has_views()
    client.xadd("page-views-1", {"app_id": "a"})
    assert page_views.has_views()
    client.delete("page-views-0", "page-views-1")


def test_a_server_that_does_not_answer_has_no_views_yet() -> None:
    assert not page_views.has_views()


@pytest.mark.parametrize(("left", "started"), [(False, ["a"]), (True, ["a", "b"])])
def test_a_pipeline_left_running_keeps_its_services(
    monkeypatch, left: bool, started: list[str]
) -> None:
    monkeypatch.setattr(demo, "is_submitted", lambda name: left)
    options = DemoOptions(0, False, Planned("a"), [Planned("b")])

    assert [service.name for service in services_for(options)()] == started


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--check", "--pipeline", "page_views", "--views-per-s", "2"], "--check has a pace"),
        (["--pipeline", "page_views", "--speed", "2"], "--speed is that of flight_delays"),
        (["--views-per-s", "2"], "add --pipeline page_views"),
        (["--pipeline", "page_views", "--views-per-s", "0"], "must be above 0"),
        (["--pipeline", "page_views", "--views-per-s", "nan"], "must be above 0"),
        (["--pipeline", "page_views", "--views-per-s", "5001"], "at most 5,000"),
    ],
)
def test_incompatible_options_are_refused_in_a_sentence(words, sentence) -> None:
    with pytest.raises(CommandError, match=sentence):
        call_command("demo", *words)


@pytest.fixture
def submitted(monkeypatch) -> dict:
    """The arguments with which the pipeline was submitted to the control plane."""
    asked: dict = {}
    monkeypatch.setattr(page_views.services, "submit_pipeline", lambda **given: asked.update(given))
    return asked


class Planned:
    """Implements the services of a `Demonstration`, and nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name

    def services(self) -> Iterator[Service]:
        yield Service(name=self.name, command=(), is_ready=lambda: True, ready_within_s=1.0)
