"""The page of all pipelines, with many: searched, filtered, grouped, sorted, in few queries."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as configuration
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ftdash.alerts.models import Alert, Watched
from ftdash.incidents.models import Incident
from ftdash.jobs.models import Pipeline
from ftdash.metrics.models import Heartbeat, HeartbeatName, Sample
from ftdash.metrics.queries.loads import minutes_of
from ftdash.runs.queries import pipelines as queries
from ftdash.runs.queries import pulses
from ftdash.ui.pipelines.fleet_page import (
    ORDERS,
    ROWS_MAX,
    UNLABELLED,
    FleetForm,
    FleetRows,
    fleet_rows,
    same_words,
)
from tests.web.page_words import text_of, words_of
from tests.web.wide_site import FAILED_EVERY, fleet

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.usefixtures("site", "patient")

FEW, MANY = 30, 120
ON_POSTGRESQL = """
import json
import django
django.setup()
from tests.new_home import make_tables
make_tables()
from tests.web.test_large_fleet import pulses_of_fleet
print(json.dumps(pulses_of_fleet()))
"""


def test_more_pipelines_need_no_more_queries() -> None:
    fleet(FEW)
    few = queries_of_fleet(FEW)
    fleet(MANY, first=FEW)

    assert queries_of_fleet(FEW + MANY) == few <= 12


def test_pipelines_with_old_samples_need_no_more_queries() -> None:
    """Some fell silent one after the other, or report events other than samples."""
    fleet(FEW)
    few = queries_of_fleet(FEW)
    for number, sample in enumerate(Sample.objects.order_by("pk")):
        Sample.objects.filter(pk=sample.pk).update(at=sample.at - timedelta(minutes=number))

    assert queries_of_fleet(FEW) == few


def test_the_minute_of_a_run_ends_with_its_own_newest_sample() -> None:
    fleet(FEW)
    first, second = Sample.objects.order_by("pk")[:2]
    first_at = first.at
    end = second.at - timedelta(hours=3)
    second.at, second.sequence = end, 100
    second.save()
    for number, before_s in enumerate((61.0, 59.0, 45.0, 29.5, 12.0)):
        second.pk, second.sequence = None, number
        second.at = end - timedelta(seconds=before_s)
        second.save()

    found = minutes_of([first.run_id, second.run_id])

    assert [each.at for each in found[first.run_id]] == [first_at]
    ages_s = [(end - each.at).total_seconds() for each in found[second.run_id]]
    assert ages_s == [59.0, 29.5, 0.0]


@pytest.mark.slow
def test_postgresql_gives_the_same_answers_as_sqlite(
    postgres: "PostgresServer", tmp_path: Path
) -> None:
    postgres.execute("create database fleet")
    environment = {
        **os.environ,
        "FTDASH_HOME": str(tmp_path),
        "FTDASH_DATABASE_URL": postgres.url.removesuffix("postgres") + "fleet",
    }

    answered = subprocess.run(
        [sys.executable, "-c", ON_POSTGRESQL],
        cwd=configuration.BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert answered.returncode == 0, answered.stderr
    expected = pulses_of_fleet()
    assert len(expected) == FEW
    assert json.loads(answered.stdout.splitlines()[-1]) == expected


def pulses_of_fleet() -> dict[str, Any]:
    """Returns the pulses of the pipelines of one seed, by name."""
    fleet(FEW)
    shown = queries.fleet().pipelines
    return {each.name: asdict(each.pulse) for each in shown if each.pulse}


def queries_of_fleet(count: int) -> int:
    pulses.forget()
    with CaptureQueriesContext(connection) as asked:
        found = queries.fleet()
    assert len(found.pipelines) == count
    assert all(each.pulse and each.pulse.durations_ms for each in found.pipelines)
    return len(asked)


def test_more_pipelines_incidents_and_alerts_need_no_more_queries_for_an_answer(
    operator: Client,
) -> None:
    """Includes all loads: the projector and each run have just reported."""
    queries_max = {"/": 29, "/regions/": 27, "/incidents/": 14, "/metrics": 28}
    for name in HeartbeatName:
        Heartbeat.objects.create(name=name, at=timezone.now(), pid=1)
    alerting(fleet(FEW))
    few = {address: queries_of(operator, address) for address in queries_max}
    alerting(fleet(MANY, first=FEW))

    assert {address: queries_of(operator, address) for address in queries_max} == few
    assert {address: few[address] for address in few if few[address] > queries_max[address]} == {}


def alerting(pipelines: list[Pipeline]) -> None:
    """Makes an alert for each incident, which explains it."""
    now = timezone.now()
    Alert.objects.bulk_create(
        [
            Alert(
                rule_name="no checkpoint completes",
                watched=Watched.SINCE_CHECKPOINT,
                pipeline=incident.pipeline,
                fire_above=60.0,
                fired_at=now,
                fired_value=95.0,
                incident=incident,
            )
            for incident in Incident.objects.filter(pipeline__in=pipelines)
        ]
    )


def queries_of(client: Client, address: str) -> int:
    client.get(address)
    pulses.forget()
    with CaptureQueriesContext(connection) as asked:
        assert client.get(address).status_code == 200
    return len(asked)


@pytest.fixture
def many(site: object) -> int:
    """Makes a fleet in which one in 25 has failed and three have labels."""
    for name in HeartbeatName:
        Heartbeat.objects.create(name=name, at=timezone.now(), pid=1)
    fleet(MANY)
    for name, labels in (
        ("payments-000", ["critical", "eu"]),
        ("search-001", ["critical"]),
        ("logistics-002", ["eu"]),
    ):
        Pipeline.objects.filter(name=name).update(labels=labels)
    return MANY


def rows_of(query: str) -> FleetRows:
    found, address = queries.fleet(), QueryDict(query)
    page = int(address.get("page", "1"))
    return fleet_rows(found, FleetForm(address, found), address.get("sort", ""), page, set())


def names(rows: FleetRows) -> list[str]:
    return [each.name for group in rows.groups for each in group.rows]


@pytest.mark.usefixtures("many")
def test_a_search_finds_by_name_flow_and_label() -> None:
    assert names(rows_of("q=payments-00")) == ["payments-000", "payments-005"]
    assert names(rows_of("q=CRITICAL")) == ["payments-000", "search-001"]
    assert rows_of("q=clicks").found == MANY // 3
    assert names(rows_of("q=critical+search")) == ["search-001"]
    assert names(rows_of("q=nothing")) == []


@pytest.mark.usefixtures("many")
def test_filters_select_exactly_the_matching_pipelines() -> None:
    failed = rows_of("state=FAILED")

    assert failed.found == len(range(3, MANY, FAILED_EVERY))
    assert {each.state.value for group in failed.groups for each in group.rows} == {"FAILED"}
    assert names(rows_of("label=eu")) == ["logistics-002", "payments-000"]
    assert rows_of("state=attention").found == rows_of("state=FAILED").found
    assert rows_of("state=NONSENSE&label=none").found == MANY  # an old link still shows rows


@pytest.mark.usefixtures("many")
def test_groups_count_their_pipelines_and_those_that_need_attention() -> None:
    by_label = rows_of("group=label")
    by_flow = rows_of("group=flow")

    assert [(each.name, each.count) for each in by_label.groups] == [
        ("critical", 2),
        ("eu", 2),
        (UNLABELLED, MANY - 3),
    ]
    assert sum(each.waiting for each in by_flow.groups) <= rows_of("state=FAILED").found
    assert {each.flow for each in by_flow.groups[0].rows} == {by_flow.groups[0].name}


@pytest.mark.usefixtures("many")
def test_pipelines_that_need_attention_come_first_unless_a_column_is_sorted() -> None:
    rows = names(rows_of(""))
    fastest = names(rows_of("sort=-throughput"))

    assert len(rows) == ROWS_MAX
    assert rows[0] in names(rows_of("state=FAILED"))
    assert fastest == names(rows_of("sort=-throughput&page=0"))
    assert fastest[0] == "platform-119"
    assert names(rows_of("sort=throughput"))[0] == "payments-000"
    assert not set(fastest) & set(names(rows_of("sort=-throughput&page=2")))
    assert len(names(rows_of("page=99"))) == MANY % ROWS_MAX


@pytest.mark.usefixtures("many")
def test_each_column_sorts_in_both_directions() -> None:
    for order in ORDERS:
        up, down = (
            [
                value
                for group in rows_of(f"sort={sign}{order.key}").groups
                for each in group.rows
                if (value := order.of(each)) is not None
            ]
            for sign in ("", "-")
        )
        assert up == sorted(up), order.key  # type: ignore[type-var]
        assert down == sorted(down, reverse=True), order.key  # type: ignore[type-var]


@pytest.mark.usefixtures("many")
def test_one_cause_is_one_line_and_the_address_keeps_the_choice(operator: Client) -> None:
    page = text_of(operator, "/?q=payments&state=RUNNING&group=state&sort=-restarts")
    notices = re.findall(r'data-incident="system-away"', text_of(operator, "/"))

    assert '<input type="search" name="q" value="payments"' in page  # the key / focuses it
    assert re.search(r'<option value="RUNNING" selected>', page)
    assert 'aria-sort="descending"' in page
    assert re.search(r'id="sort-state" href="\?q=payments&amp;state=RUNNING&amp;group=state', page)
    assert len(notices) == 1
    assert "and 1 more" in words_of(operator, "/")


def test_texts_that_differ_only_in_numbers_share_one_cause() -> None:
    one = "The driver was RUNNING and has reported nothing for 42 s."

    assert same_words(one) == same_words(one.replace("42 s", "1 min 07 s"))
    assert same_words(one) != same_words(one.replace("RUNNING", "CREATED"))


def test_an_admin_labels_a_pipeline_and_an_operator_may_not(
    admin: Client, operator: Client
) -> None:
    fleet(1)
    address = "/pipelines/payments-000/labels/"

    assert operator.get(address).status_code == 403
    assert operator.post(address, {"labels": "eu"}).status_code == 403
    assert admin.post(address, {"labels": ", ".join(map(str, range(11)))}).status_code == 422
    assert admin.post(address, {"labels": " eu, critical,, eu"}).status_code == 302
    assert Pipeline.objects.get().labels == ["critical", "eu"]
    assert admin.get("/pipelines/none/labels/").status_code == 404


@pytest.mark.usefixtures("many")
def test_the_page_of_all_pipelines_takes_little_time(operator: Client) -> None:
    """Measures processor time; the limit is a fifth of the budget of 500 pipelines.

    Takes the least of some, because the same work takes longer beside other programs.
    """
    operator.get("/")

    def took_s() -> float:
        pulses.forget()
        began_s = time.process_time()
        operator.get("/")
        return time.process_time() - began_s

    assert any(took_s() < 0.2 for _ in range(20))
