"""No page claims more than is known: each page names the silent process that made its figures."""

import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.test import Client
from django.urls import URLPattern, get_resolver, reverse

from ftdash.alerts.models import Evaluation
from ftdash.flink_clusters.models import FlinkCheckpoint, FlinkCluster, FlinkJob
from ftdash.gameday.models import GameDay
from ftdash.incidents.causes import Cause
from ftdash.incidents.models import Incident
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Upgrade
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection.projector import Projector
from ftdash.runs.queries import pipelines as queries
from ftdash.runs.queries.freshness import observe, silent_in
from ftdash.watching.models import QueryWork, WatchedQuery, WorkKind
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import CheckpointKind
from tests.web.addresses import all_patterns
from tests.web.filled_states import ended_game_days
from tests.web.journals import Story, StoryClock, new_request, new_run
from tests.web.page_words import text_of, words_in
from tests.web.watched import listener, progress, report

pytestmark = pytest.mark.usefixtures("site")

SILENT_FOR = timedelta(seconds=8.5)
"""Longer than a busy process may be silent, but less than the ten seconds until a page says so."""

SILENT = (
    "The pages may be out of date. The projector, which turns reports of running pipelines into"
    " these pages, has been silent for 8 s; start it with `manage.py projector`. Requests wait. The"
    " worker, its beat or the Redis between them, which deliver requests and restart pipelines, has"
    " been silent for 8 s; requests are kept and wait. Start those that are down, such as with"
    " systemctl start redis-server ftdash-worker ftdash-beat."
)
LIVE = {
    str(pattern.name): pattern
    for pattern in all_patterns(get_resolver().url_patterns)
    if str(pattern.name).endswith("-regions")
}
CODE = ShippedCode(package="shop", version="2.0", file="shop-2.0.whl", sha256="0" * 64)
JOB = "0" * 32
MADE_BY_A_DRIVER = {
    "checkpoint-regions",
    "checkpoints-regions",
    "flink-checkpoint-regions",
    "flink-cluster-regions",
    "flink-job-regions",
    "guarantee-regions",
    "lineage-regions",
    "logs-regions",
    "pipeline-metrics-regions",
    "pipeline-planner-regions",
    "pipeline-regions",
    "recovery-regions",
    "savepoint-regions",
    "savepoints-regions",
    "watched-query-regions",
}


@pytest.mark.slow
def test_each_page_names_silent_processes_and_has_the_age_of_its_source(
    operator: Client, as_installed: datetime
) -> None:
    last_seen(as_installed - SILENT_FOR)

    for name in LIVE:
        whole, refreshed = read(operator, name, is_whole=True), read(operator, name)

        assert SILENT in words_in(whole), name
        assert SILENT in words_in(refreshed), name
        assert age_of(refreshed) == SILENT_FOR / timedelta(milliseconds=1), name
        assert 'data-silent-in-ms=""' in refreshed, name
    heard_again(as_installed)
    for name in LIVE:
        spoken = read(operator, name)

        assert 'data-silent-in-ms="8000"' in spoken, name
        assert "silent" not in region_of_processes(spoken), name
        assert (age_of(spoken) > 0) == (name in MADE_BY_A_DRIVER), name


@pytest.mark.parametrize("name", ["event-log-regions", "game-days-regions", "lab-regions"])
def test_a_page_that_no_process_ever_filled_has_no_age(operator: Client, name: str) -> None:
    answer = text_of(operator, reverse(name))

    assert 'data-fresh-ms=""' in answer
    assert "has never run" in words_in(answer)


@pytest.mark.parametrize("silent", HeartbeatName)
def test_open_tabs_are_notified_when_a_process_falls_silent(
    as_installed: datetime, silent: HeartbeatName
) -> None:
    last_seen(as_installed)
    before = queries.versions()

    Heartbeat.objects.filter(name=silent).update(at=as_installed - SILENT_FOR)

    assert queries.versions() != before


@pytest.mark.parametrize("silent", HeartbeatName)
def test_data_from_two_processes_is_as_old_as_the_older_report(
    as_installed: datetime, silent: HeartbeatName
) -> None:
    heard_again(as_installed)
    Heartbeat.objects.filter(name=silent).update(at=as_installed - SILENT_FOR)

    assert observe().as_of == as_installed - SILENT_FOR


@pytest.mark.parametrize("silent", HeartbeatName)
def test_a_process_that_is_late_on_a_busy_machine_is_not_silent_yet(
    as_installed: datetime, silent: HeartbeatName
) -> None:
    heard_again(as_installed)
    Heartbeat.objects.filter(name=silent).update(at=as_installed - timedelta(seconds=7.5))

    seen = observe()

    assert seen.projector.is_alive
    assert seen.reconcile.is_alive


@pytest.mark.parametrize("silent", HeartbeatName)
def test_the_page_asks_again_when_the_first_process_would_be_late(
    as_installed: datetime, silent: HeartbeatName
) -> None:
    heard_again(as_installed)
    Heartbeat.objects.filter(name=silent).update(at=as_installed - timedelta(seconds=7.5))

    assert silent_in(observe()) == timedelta(seconds=0.5)
    Heartbeat.objects.filter(name=silent).update(at=as_installed - SILENT_FOR)
    assert silent_in(observe()) is None


def last_seen(at: datetime) -> None:
    """Makes a run with everything that pages show; all its writers are silent since `at`."""
    run = new_run()
    path = run_directory(run).path / "savepoint"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    clock = StoryClock(now_ms=round(at.timestamp() * 1000) - 2_000)
    story = Story(run, clock).started().completed()
    story.completed(CheckpointKind.SAVEPOINT, path=str(path))
    clock.now_ms = round(at.timestamp() * 1000)
    story.sampled()
    Projector().run_once()
    type(run).objects.update(last_event_at=at)  # exactly, without the rounding
    ended_game_days(run)
    of_it = {"pipeline": run.pipeline}
    Incident.objects.create(cause=Cause.SLOT_LOST, opened_at=at, last_at=at, **of_it)
    Upgrade.objects.create(
        request=new_request(run, request_id="an-upgrade"),
        old_run=run,
        new_code=msgspec.to_builtins(CODE),
        checkpoints=3,
        timeout_ms=600_000,
        step_at=at,
        **of_it,
    )
    cluster = FlinkCluster.objects.create(
        name="prod",
        address="http://flink:8081",
        created_by="ada",
        created_at=at,
        due_at=at,
        heard_at=at,
    )
    times = {"started_at": at, "listed_at": at}
    job = FlinkJob.objects.create(
        cluster=cluster, jid=JOB, name="counted", state="RUNNING", **times
    )
    said = {"status": "COMPLETED", "triggered_at": at, "said_at": at}
    FlinkCheckpoint.objects.create(job=job, checkpoint_id=1, **said)
    report(listener(), progress(0, at=at - timedelta(seconds=1), took_ms=1_000))
    heard_again(at)


def heard_again(at: datetime) -> None:
    """Records signs of life of projector and worker; the driver stays silent."""
    for name in HeartbeatName:
        Heartbeat.objects.update_or_create(name=name, defaults={"at": at, "pid": 1, "note": ""})
    Evaluation.objects.update_or_create(defaults={"at": at})


def read(client: Client, name: str, *, is_whole: bool = False) -> str:
    """Returns the parts that an open page fetches again, or with `is_whole` the whole page."""
    regions = address_of(LIVE[name])
    return text_of(client, regions.removesuffix("regions/") if is_whole else regions)


def address_of(pattern: URLPattern) -> str:
    table = Incident if pattern.name == "incident-regions" else GameDay
    newest = table._default_manager.latest("pk").pk
    values = {
        "name": "flights",
        "checkpoint_id": 1,
        "savepoint_key": "flights-1-2",
        "request_id": "an-upgrade",
    }
    if pattern.name == "watched-query-regions":
        values["name"] = "orders"
    if str(pattern.name).startswith("flink-"):
        values |= {"name": "prod", "jid": JOB}
    if pattern.name == "query-work-regions":
        query = WatchedQuery.objects.get(name="orders")
        looked = QueryWork.objects.get_or_create(
            query=query, kind=WorkKind.STATE, defaults={"created_at": datetime.now(UTC)}
        )
        values |= {"name": query.name, "key": looked[0].pk}
    wanted = pattern.pattern.converters
    return reverse(str(pattern.name), kwargs={k: values.get(k, newest) for k in wanted})


def age_of(answer: str) -> float:
    (age_ms,) = re.findall(r'data-fresh-ms="(\d+)"', answer)
    return float(age_ms)


def region_of_processes(answer: str) -> str:
    (region,) = re.findall(r'<div id="region-processes".*?</div>', answer, re.DOTALL)
    return str(region)
