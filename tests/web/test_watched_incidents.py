"""Incidents of watched queries: their start, text, recipients and end."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configuration
from django.core import mail
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import AdminAction, TokenScope
from ftdash.alerts import delivery, evaluation
from ftdash.alerts import services as alert_services
from ftdash.alerts.models import AlertRule, Channel, ChannelKind, Delivery, News, Silence
from ftdash.flink_clusters.models import FlinkCluster, FlinkJob
from ftdash.incidents.causes import ADVICE, OF_FLINK_JOBS, OF_QUERIES, OF_WATCHED, Cause
from ftdash.jobs.models import Pipeline
from ftdash.watching.incident_signs import LAG_BATCHES, LATE_AFTER_INTERVALS, Limits, Seen, signs
from ftdash.watching.models import QuerySavepoint, WatchedIncident, WatchedQuery
from ftdash.watching.query_status import QueryState
from ftdash.watching.services import incidents as watched_incidents
from ftdash.watching.services import registration
from ftdash.watching.services.registration import Sighting
from pipelines.domain.errors import Rejected
from tests.new_home import new_home
from tests.structured_directories import Traits, write_query
from tests.web.api_callers import bearer
from tests.web.default_rules import make_default_rules
from tests.web.page_words import text_of, words_in
from tests.web.settings_posts import post, settings_address
from tests.web.watched import listener, progress, report, said

pytestmark = pytest.mark.usefixtures("site")

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
WELL = Seen(
    now=NOW,
    state=QueryState.RUNNING,
    last_committed_at=NOW - timedelta(seconds=10),
    interval_ms=10_000,
    batch_id=7,
    batch_ms=3_000,
    lags=[100] * LAG_BATCHES,
)
HOUR = timedelta(hours=1)
THE_WAY_BACK = """
import django
django.setup()
from django.core.management import call_command
from django.utils import timezone
from ftdash.watching.models import WatchedIncident, WatchedQuery
now = timezone.now()
query = WatchedQuery.objects.create(name="orders", created_by="ada", created_at=now)
for cause in ("query-slow", "query-behind"):
    WatchedIncident.objects.create(query=query, cause=cause, opened_at=now, last_at=now)
call_command("migrate", "watching", "0003", verbosity=0)
for cause, closed_at in WatchedIncident.objects.order_by("pk").values_list("cause", "closed_at"):
    print(cause, closed_at is None)
"""
LATE = timedelta(seconds=10 * LATE_AFTER_INTERVALS)


def causes(seen: Seen) -> list[Cause]:
    return [each.cause for each in signs(seen)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"state": QueryState.FAILED, "failure": "boom"}, [Cause.QUERY_FAILED]),
        ({"last_committed_at": NOW - LATE}, []),
        ({"last_committed_at": NOW - LATE * 1.01}, [Cause.QUERY_LATE]),
        ({"last_committed_at": NOW - LATE * 1.01, "state": QueryState.STALE}, [Cause.QUERY_LATE]),
        ({"last_committed_at": NOW - LATE * 9, "state": QueryState.IDLE}, []),
        ({"last_committed_at": NOW - LATE * 9, "state": QueryState.FINISHED}, []),
        ({"last_committed_at": NOW - LATE * 9, "interval_ms": None}, []),
        ({"last_committed_at": NOW - timedelta(seconds=50), "interval_ms": 100}, []),
        (
            {"last_committed_at": NOW - timedelta(seconds=61), "interval_ms": 100},
            [Cause.QUERY_LATE],
        ),
        ({"lags": list(range(1_200, 0, -100))}, [Cause.QUERY_BEHIND]),
        ({"lags": list(range(100, 1_300, 100))}, []),  # it catches up
        ({"lags": [900, 100, 900, 100, 900, 100] * 2}, []),
        ({"lags": [0] * LAG_BATCHES}, []),
        ({"lags": [900] * 6 + [100] * 5}, []),  # too few
        ({"limits": Limits(late_after_s=10.0)}, []),
        ({"limits": Limits(late_after_s=9.9)}, [Cause.QUERY_LATE]),
        ({"limits": Limits(late_after_s=9.9), "interval_ms": None}, [Cause.QUERY_LATE]),
        ({"limits": Limits(late_after_s=9.9), "state": QueryState.IDLE}, []),
        ({"limits": Limits(late_after_s=1e4), "last_committed_at": NOW - LATE * 9}, []),
        ({"limits": Limits(lag_max=100)}, []),
        ({"limits": Limits(lag_max=99)}, [Cause.QUERY_BEHIND]),
        ({"limits": Limits(lag_max=99), "lags": []}, []),
        ({"limits": Limits(lag_max=1_200), "lags": list(range(1_200, 0, -100))}, []),
        ({"limits": Limits(batch_max_s=3.0)}, []),
        ({"limits": Limits(batch_max_s=2.9)}, [Cause.QUERY_SLOW]),
        ({"limits": Limits(batch_max_s=2.9), "batch_ms": None}, []),
        ({"damage": ["offsets/3 is missing."]}, [Cause.CHECKPOINT_DAMAGED]),
        ({"altered": ["friday"]}, [Cause.SAVEPOINT_ALTERED]),
    ],
)
def test_each_problem_of_a_query_is_reported_under_its_cause(
    changes: dict[str, Any], expected: list[Cause]
) -> None:
    assert causes(replace(WELL, **changes)) == expected


def test_the_advice_for_each_cause_names_a_command() -> None:
    assert (len(OF_QUERIES), len(OF_FLINK_JOBS), len(OF_WATCHED)) == (6, 6, 13)
    for cause in OF_WATCHED:
        assert "manage.py watch" in ADVICE[cause].cure or "flink run -s" in ADVICE[cause].cure


def failed_query() -> Client:
    client = listener()
    began = timezone.now() - timedelta(seconds=30)
    report(client, *(progress(n, at=began + timedelta(seconds=n)) for n in range(4)))
    ended = timezone.now()
    report(client, said("terminated", ended, exception="boom", errorClass="DIVIDE_BY_ZERO"))
    return client


def test_a_failed_query_has_one_incident_until_it_runs_for_a_minute(operator: Client) -> None:
    client = failed_query()
    now = timezone.now()

    for seconds in range(3):
        watched_incidents.judge_watched(now + timedelta(seconds=seconds))

    (row,) = WatchedIncident.objects.all()
    assert (row.cause, row.closed_at) == ("query-failed", None)
    words = words_in(text_of(operator, "/incidents/"))
    assert "orders query The query failed DIVIDE_BY_ZERO" in words
    assert "Read the exception on its page and correct the cause." in words
    assert "query orders: The query failed" in words_in(text_of(operator, "/events/"))

    report(client, progress(5, run="33333333-aaaa-4444-8888-000000000001", at=timezone.now()))
    watched_incidents.judge_watched(now + timedelta(seconds=30))
    assert WatchedIncident.objects.get().closed_at is None
    watched_incidents.judge_watched(now + timedelta(seconds=70))
    assert WatchedIncident.objects.get(cause="query-failed").closed_at is not None
    assert "over: no longer seen" in words_in(text_of(operator, "/events/"))


def test_damage_and_an_altered_savepoint_are_found_by_their_rows(
    operator: Client, settings: Any, tmp_path: Path
) -> None:
    settings.WATCH_ROOTS = [str(tmp_path)]
    made = write_query(tmp_path / "orders", Traits())
    made.delete("offsets/9")
    seen = Sighting(directory=str(made.checkpoint))
    query = registration.watch(name="orders", seen=seen, requester="ada", reason="x")
    QuerySavepoint.objects.create(
        query=query,
        label="friday",
        location="/s",
        batch_id=3,
        keeps_next=False,
        store="HDFS-backed",
        size_bytes=1,
        file_count=1,
        digest="x",
        taken_by="ada",
        taken_at=timezone.now(),
        problems=["commits/3 has been altered."],
    )

    watched_incidents.judge_watched(timezone.now())

    found = {row.cause for row in WatchedIncident.objects.all()}
    assert found >= {"checkpoint-damaged", "savepoint-altered"}
    assert "A savepoint of the query is not as it was written. Not as written: friday." in words_in(
        text_of(operator, "/watched/orders/")
    )
    scraped = bearer(TokenScope.READ).get("/metrics").content.decode()
    assert 'ftdash_query_incident{cause="savepoint-altered",query="orders"} 1.0' in scraped
    assert 'ftdash_query_savepoints{query="orders"} 1.0' in scraped


def test_a_query_above_its_limits_has_incidents_until_they_are_raised(
    admin: Client, operator: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    now = timezone.now()
    report(listener(), *(progress(n, at=now + timedelta(seconds=n - 9)) for n in range(4)))
    given = {"late_after_s": "1", "lag_max": "100", "batch_max_s": "0.5", "reason": "our promise"}
    address = "/watched/orders/limits/"
    assert operator.post(address, given).status_code == 403
    assert admin.post(address, {**given, "lag_max": "0"}).status_code == 422
    assert admin.post(address, given).headers["Location"] == "/watched/orders/"

    watched_incidents.judge_watched(now)

    texts = {row.cause: row.text for row in WatchedIncident.objects.all()}
    assert texts["query-slow"] == "Batch 3 took 800 ms, and 500 ms are allowed."
    assert texts["query-behind"] == "240 records wait, and 100 are allowed."
    assert texts["query-late"].endswith("ago, and 1.00 s are allowed.")
    assert "A batch of the query took too long" in words_in(text_of(operator, "/watched/orders/"))
    assert 'value="100"' in text_of(admin, address)
    logged = AdminAction.objects.get(what="set the limits")
    assert (logged.subject, logged.reason) == ("query orders", "our promise")
    said = "1.00 s without a batch, 100 records waiting, 500 ms for a batch"
    assert logged.detail == said
    assert f"limits {said}" in words_in(text_of(operator, "/watched/orders/"))

    call_command("watch", "limits", "orders", "--lag-max", "300", "--usual")
    assert capsys.readouterr().out.splitlines() == [
        "late-after-s: as usual",
        "lag-max: 300",
        "batch-max-s: as usual",
    ]
    watched_incidents.judge_watched(now + timedelta(seconds=61))
    assert not WatchedIncident.objects.filter(closed_at=None, cause="query-slow").exists()
    assert not WatchedIncident.objects.filter(closed_at=None, cause="query-behind").exists()


def test_programs_set_and_read_the_limits_of_a_query() -> None:
    report(listener(), progress(1))
    program = bearer(TokenScope.ACT)
    asked = {"lag_max": 5, "reason": "x"}
    set_to = program.post("/api/watched-queries/orders/limits", asked, "application/json").json()
    read = program.get("/api/watched-queries/orders").json()

    assert set_to["limits"] == {"late_after_s": None, "lag_max": 5, "batch_max_s": None}
    assert read["limits"] == set_to["limits"]
    refused = {"batch_max_s": -1, "reason": "x"}
    answer = program.post("/api/watched-queries/orders/limits", refused, "application/json")
    assert answer.status_code == 422
    with pytest.raises(CommandError, match="no watched query 'none'"):
        call_command("watch", "limits", "none")


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_not_a_number_above_0_is_refused(limit: str) -> None:
    report(listener(), progress(1))

    with pytest.raises(CommandError, match="A limit has to be above 0"):
        call_command("watch", "limits", "orders", f"--batch-max-s={limit}")

    assert WatchedQuery.objects.get().limits is None


@pytest.mark.slow
def test_a_downgrade_gives_incidents_a_cause_that_the_older_version_knows(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "FTDASH_HOME": str(new_home(tmp_path))}

    done = subprocess.run(
        [sys.executable, "-c", THE_WAY_BACK],
        cwd=configuration.BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["query-behind False", "query-behind True"]


def mails_to_all() -> None:
    Channel.objects.create(
        name="on-call",
        kind=ChannelKind.MAIL,
        address="on-call@example.org",
        created_by="ada",
        created_at=timezone.now(),
    )


def test_channels_get_one_message_when_an_incident_opens_and_one_when_it_ends(
    settings: Any,
) -> None:
    settings.MAIL_IS_SET = True
    mails_to_all()
    failed_query()
    now = timezone.now()

    for seconds in range(3):
        watched_incidents.judge_watched(now + timedelta(seconds=seconds))
        evaluation.evaluate(now + timedelta(seconds=seconds))
    assert [each.news for each in Delivery.objects.all()] == [News.FIRED]
    message = delivery.message_of(Delivery.objects.get())
    assert message.subject == "ftdash: orders: The query failed"
    assert message.query == "orders"
    assert "Next: Read the exception" in message.text

    WatchedIncident.objects.update(closed_at=now)
    evaluation.evaluate(now + timedelta(seconds=5))
    evaluation.evaluate(now + timedelta(seconds=6))
    assert sorted(each.news for each in Delivery.objects.all()) == [News.CLEARED, News.FIRED]
    Delivery.objects.update(due_at=now)
    delivery.deliver_due()
    assert [each.subject for each in mail.outbox] == [
        "ftdash: orders: The query failed",
        "ftdash: orders: The query failed (over)",
    ]


def test_a_silence_of_everything_holds_the_message_back() -> None:
    mails_to_all()
    failed_query()
    now = timezone.now()
    watched_incidents.judge_watched(now)
    silence = Silence.objects.create(
        until=now + timedelta(hours=1), reason="x", created_by="ada", created_at=now
    )

    evaluation.evaluate(now + timedelta(seconds=1))
    assert not Delivery.objects.exists()
    silence.delete()
    evaluation.evaluate(now + timedelta(seconds=2))
    assert Delivery.objects.count() == 1


def silenced(now: datetime, **what: str) -> None:
    given: dict[str, str | None] = {"rule": None, "pipeline": None, **what}
    until = now + timedelta(hours=1)
    alert_services.make_silence(**given, until=until, requester="ada", reason="we move it")


def test_a_silence_of_the_query_holds_its_first_message_back_until_it_ends(
    admin: Client, operator: Client
) -> None:
    mails_to_all()
    failed_query()
    now = timezone.now()
    form = words_in(text_of(admin, settings_address("silence", "query:orders")))
    assert "no message about the query orders until the silence ends" in form
    given = {"rule": "", "pipeline": "query:orders", "hours": "1", "reason": "we move it"}
    assert post(admin, "silence", given, "query:orders").status_code == 302
    watched_incidents.judge_watched(now)

    evaluation.evaluate(now + timedelta(seconds=1))

    assert not Delivery.objects.exists()
    words = words_in(text_of(operator, "/watched/orders/"))
    assert "Silenced. The channels get no message until" in words
    assert "incidents query orders" in words_in(text_of(operator, "/alerts/"))
    assert AdminAction.objects.get(what="silenced").subject == "query orders"
    silence = Silence.objects.get()
    alert_services.end_silence(key=silence.pk, requester="ada", reason="done")
    evaluation.evaluate(now + timedelta(seconds=2))
    assert [each.news for each in Delivery.objects.all()] == [News.FIRED]


def test_a_silence_hides_an_ended_incident_but_not_the_end_of_a_reported_one() -> None:
    mails_to_all()
    failed_query()
    now = timezone.now()
    watched_incidents.judge_watched(now)
    evaluation.evaluate(now)
    silenced(now, query="orders")
    query = WatchedQuery.objects.get()
    WatchedIncident.objects.create(
        query=query, cause="query-late", text="x", opened_at=now, last_at=now, closed_at=now
    )

    WatchedIncident.objects.update(closed_at=now)
    for seconds in (1, 2):
        evaluation.evaluate(now + timedelta(seconds=seconds))
    Silence.objects.all().delete()
    evaluation.evaluate(now + timedelta(seconds=3))

    told = Delivery.objects.order_by("pk").values_list("watched_incident__cause", "news")
    assert list(told) == [("query-failed", News.FIRED), ("query-failed", News.CLEARED)]


def test_a_silence_of_another_subject_does_not_hold_back_the_message() -> None:
    mails_to_all()
    failed_query()
    now = timezone.now()
    other = FlinkCluster.objects.create(
        name="prod", address="http://x", created_by="ada", created_at=now, due_at=now
    )
    another = WatchedQuery.objects.create(name="rides", created_by="ada", created_at=now)
    silenced(now, query=another.name)
    silenced(now, flink_cluster=other.name)
    watched_incidents.judge_watched(now)

    evaluation.evaluate(now + timedelta(seconds=1))

    assert [each.news for each in Delivery.objects.all()] == [News.FIRED]


def test_a_silence_of_a_query_does_not_hold_back_alerts_of_a_pipeline() -> None:
    mails_to_all()
    failed_query()
    now = timezone.now()
    pipeline = Pipeline.objects.create(name="flights", flow="flight_delays", created_at=now)
    AlertRule.objects.all().delete()  # an earlier test may have emptied every table
    make_default_rules()
    silenced(now, query="orders")

    evaluation.fire(AlertRule.objects.all()[0], pipeline, 95.0, now, fire_above=60.0)

    assert Delivery.objects.get().alert is not None


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"query": "none"}, "There is no watched query 'none'"),
        ({"flink_cluster": "none"}, "There is no watched Flink cluster 'none'"),
        ({"query": "orders", "rule": "late"}, "name no rule"),
        ({"query": "orders", "flink_cluster": "prod"}, "only one of them"),
    ],
)
def test_a_silence_of_an_unwatched_subject_is_refused(what: dict[str, str], message: str) -> None:
    failed_query()

    with pytest.raises(Rejected, match=message):
        silenced(timezone.now(), **what)

    assert not Silence.objects.exists()


def test_programs_and_the_command_silence_a_cluster_with_its_jobs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mails_to_all()
    now = timezone.now()
    cluster = FlinkCluster.objects.create(
        name="prod", address="http://x", created_by="ada", created_at=now, due_at=now
    )
    job = FlinkJob.objects.create(
        cluster=cluster, jid="1" * 32, name="count", state="FAILED", started_at=now, listed_at=now
    )
    for subject in ({"flink_cluster": cluster}, {"flink_job": job}):
        WatchedIncident.objects.create(
            **subject, cause="flink-job-failed", text="x", opened_at=now, last_at=now
        )
    body = {"flink_cluster": "prod", "until": (now + HOUR).isoformat(), "reason": "an upgrade"}
    answer = bearer(TokenScope.ACT).post(
        "/api/alerts/silences", json.dumps(body), content_type="application/json"
    )
    assert answer.status_code == 200, answer.content
    assert (answer.json()["flink_cluster"], answer.json()["query"]) == ("prod", None)

    evaluation.evaluate(now + timedelta(seconds=1))

    assert not Delivery.objects.exists()
    call_command("alerts", "silences")
    assert "incidents for Flink cluster prod" in capsys.readouterr().out
    call_command("alerts", "end-silence", str(answer.json()["key"]), "--reason", "done")
    call_command(
        "alerts", "silence", "--flink-cluster", "prod", "--minutes", "5", "--reason", "again"
    )
    assert [each.flink_cluster for each in Silence.objects.all()] == [cluster, cluster]
    Silence.objects.all().delete()
    evaluation.evaluate(now + timedelta(seconds=2))
    assert Delivery.objects.count() == 2


def test_programs_read_the_incidents() -> None:
    failed_query()
    watched_incidents.judge_watched(timezone.now())

    (found,) = bearer(TokenScope.READ).get("/api/watched-queries/orders/incidents").json()

    assert (found["cause"], found["closed_at"]) == ("query-failed", None)
    assert found["next_step"].startswith("Read the exception")


def test_a_removed_query_has_no_incident() -> None:
    failed_query()
    watched_incidents.judge_watched(timezone.now())

    registration.remove(name="orders", requester="ada", reason="x")

    assert not WatchedIncident.objects.exists()
    watched_incidents.judge_watched(timezone.now())
    assert WatchedQuery.objects.get().removed_at is not None
    assert not WatchedIncident.objects.exists()
