"""Incidents of watched Flink clusters: their start, text, recipients and end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import TokenScope
from ftdash.alerts import delivery, evaluation
from ftdash.alerts.models import Channel, ChannelKind, Delivery, News
from ftdash.flink_clusters.incident_signs import (
    FAILED_IN_A_ROW,
    GONE_FOR,
    LATE_AFTER_INTERVALS,
    RESTARTS,
    ClusterSeen,
    JobSeen,
    cluster_signs,
    job_signs,
)
from ftdash.flink_clusters.models import FlinkCheckpoint, FlinkCluster, FlinkJob
from ftdash.flink_clusters.services import looking, registration
from ftdash.flink_clusters.services.registration import Place
from ftdash.incidents.causes import Cause
from ftdash.metrics.load_rules import USUAL_MIN
from ftdash.watching.models import WatchedIncident
from ftdash.watching.services import incidents as watched_incidents
from tests.web.api_callers import bearer
from tests.web.page_words import text_of, words_in
from tests.web.recorded_flink import RecordedFlink, recorded_flink

pytestmark = pytest.mark.usefixtures("site")

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
WELL = JobSeen(
    now=NOW,
    state="RUNNING",
    started_at=NOW - timedelta(hours=1),
    exception="java.io.IOException: gone In map.",
    exception_count=RESTARTS - 1,
    interval_ms=10_000,
    completed_at=NOW - timedelta(seconds=12),
    durations_ms=[800.0] * (USUAL_MIN + 2),
    failures_in_a_row=["Checkpoint expired before completing."] * (FAILED_IN_A_ROW - 1),
)
LATE = timedelta(seconds=10 * LATE_AFTER_INTERVALS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"exception_count": RESTARTS}, [Cause.FLINK_RESTARTS]),
        ({"exception_count": RESTARTS, "state": "RESTARTING"}, [Cause.FLINK_RESTARTS]),
        ({"failures_in_a_row": ["expired"] * FAILED_IN_A_ROW}, [Cause.FLINK_CHECKPOINTS_FAIL]),
        ({"durations_ms": [800.0] * USUAL_MIN + [4_100.0] * 2}, [Cause.FLINK_SLOW_CHECKPOINTS]),
        ({"durations_ms": [800.0] * USUAL_MIN + [4_100.0, 800.0]}, []),
        ({"under_way_ms": 8_100.0}, [Cause.FLINK_SLOW_CHECKPOINTS]),
        ({"completed_at": NOW - LATE}, []),
        ({"completed_at": NOW - LATE * 1.01}, [Cause.FLINK_NO_CHECKPOINT]),
        ({"completed_at": NOW - LATE * 9, "interval_ms": None}, []),
        ({"completed_at": NOW - LATE * 2, "durations_ms": [30_000.0]}, []),
        ({"completed_at": None}, [Cause.FLINK_NO_CHECKPOINT]),
        ({"completed_at": None, "started_at": NOW - LATE}, []),
        ({"completed_at": NOW - timedelta(seconds=50), "interval_ms": 100}, []),
        ({"state": "FAILED", "completed_at": NOW - LATE * 9}, [Cause.FLINK_JOB_FAILED]),
        ({"state": "FAILED", "is_replaced": True}, []),
        ({"state": "CANCELED", "completed_at": NOW - LATE * 9}, []),
        ({"forgotten_at": NOW - LATE}, [Cause.FLINK_JOB_GONE]),
        ({"forgotten_at": NOW - LATE, "is_replaced": True}, []),
        ({"forgotten_at": NOW - LATE, "state": "FINISHED"}, []),
        ({"forgotten_at": NOW - GONE_FOR * 1.01}, []),
    ],
)
def test_each_problem_of_a_job_is_reported_under_its_cause(
    changes: dict[str, Any], expected: list[Cause]
) -> None:
    assert [each.cause for each in job_signs(replace(WELL, **changes))] == expected


@pytest.mark.parametrize(
    ("problem", "seconds", "is_silent"),
    [("refused", 61, True), ("refused", 60, False), ("", 600, False)],
)
def test_a_cluster_is_silent_after_a_minute_without_an_answer(
    problem: str, seconds: int, is_silent: bool
) -> None:
    seen = ClusterSeen(now=NOW, heard_at=NOW - timedelta(seconds=seconds), problem=problem)

    assert [each.cause for each in cluster_signs(seen)] == [Cause.FLINK_SILENT] * is_silent


@pytest.fixture
def flink() -> Any:
    with recorded_flink("2.3") as flink:
        flink.move_to(timezone.now())
        yield flink


def watched(flink: RecordedFlink) -> int:
    place = Place(address=flink.address)
    row = registration.watch(name="prod", place=place, requester="ada", reason="to see it")
    looking.look(row.pk)
    return int(row.pk)


def open_causes() -> list[str]:
    rows = WatchedIncident.objects.filter(closed_at=None).order_by("cause")
    return list(rows.values_list("cause", flat=True))


def test_a_failed_job_is_reported_with_its_exception_everywhere(
    flink: RecordedFlink, operator: Client
) -> None:
    cluster = watched(flink)
    watched_incidents.judge_watched(timezone.now())
    assert open_causes() == []
    flink.job["state"], flink.job["last-modification"] = "FAILED", 1
    looking.look(cluster)

    for _ in range(3):
        watched_incidents.judge_watched(timezone.now())

    assert open_causes() == ["flink-job-failed"]
    said = "The Flink job failed. java.lang.IllegalStateException"
    assert f"counted (prod): {said}" in words_in(text_of(operator, "/"))
    for page in ("", f"jobs/{flink.jid}/"):
        words = words_in(text_of(operator, f"/flink-clusters/prod/{page}"))
        assert said in words
        assert "Next: Read the exception on its page and correct the cause." in words
    assert "counted (prod) Flink job The Flink job failed" in words_in(
        text_of(operator, "/incidents/")
    )
    log = words_in(text_of(operator, "/events/"))
    assert "Flink job counted (prod): The Flink job failed" in log
    assert "Flink job counted (prod): exception java.lang.IllegalStateException" in log
    caller = bearer(TokenScope.READ)
    (found,) = caller.get("/api/flink-clusters/prod/incidents").json()
    assert (found["cause"], found["flink_job"]) == ("flink-job-failed", flink.jid)
    assert found["next_step"].startswith("Read the exception")
    labels = f'cluster="prod",job_id="{flink.jid}",job_name="counted"'
    scraped = caller.get("/metrics").content.decode()
    assert f'ftdash_flink_incident{{cause="flink-job-failed",{labels}}} 1.0' in scraped
    assert f'ftdash_flink_incident{{cause="flink-restarts",{labels}}} 0.0' in scraped
    assert f'ftdash_flink_job_state{{{labels},state="FAILED"}} 1.0' in scraped
    assert 'ftdash_flink_cluster_up{cluster="prod"} 1.0' in scraped


def test_the_incident_of_a_failed_job_ends_once_a_later_job_of_its_name_runs(
    flink: RecordedFlink,
) -> None:
    cluster = watched(flink)
    flink.job["state"], flink.job["last-modification"] = "FAILED", 1
    looking.look(cluster)
    now = timezone.now()
    watched_incidents.judge_watched(now)
    later = flink.job | {"jid": "b" * 32, "state": "RUNNING"}
    FlinkJob.objects.create(
        cluster_id=cluster,
        jid=later["jid"],
        name=later["name"],
        state="RUNNING",
        started_at=now,
        listed_at=now,
    )

    watched_incidents.judge_watched(now + timedelta(seconds=30))
    assert open_causes() == ["flink-job-failed"]
    FlinkCluster.objects.update(heard_at=now + timedelta(seconds=70))
    watched_incidents.judge_watched(now + timedelta(seconds=70))
    assert open_causes() == []


def test_flinks_answers_reveal_expired_checkpoints_and_repeated_failures(
    flink: RecordedFlink,
) -> None:
    cluster = watched(flink)
    entry = flink.bodies["exceptions"]["body"]["exceptionHistory"]["entries"][0]
    now_ms = round(timezone.now().timestamp() * 1000)
    flink.bodies["exceptions"]["body"]["exceptionHistory"]["entries"] = [
        entry | {"timestamp": now_ms - 1_000 * number} for number in range(RESTARTS)
    ]
    flink.job["last-modification"] += 1
    flink.advance(FAILED_IN_A_ROW, status="FAILED")
    looking.look(cluster)

    watched_incidents.judge_watched(timezone.now())

    assert open_causes() == ["flink-checkpoints-fail", "flink-restarts"]
    (text,) = WatchedIncident.objects.filter(cause="flink-checkpoints-fail").values_list(
        "text", flat=True
    )
    assert text.endswith("one after the other; the newest: Checkpoint expired before completing.")


def test_flinks_answers_reveal_slow_and_missing_checkpoints(
    flink: RecordedFlink,
) -> None:
    cluster = watched(flink)
    flink.advance(8, took_ms=100)
    looking.look(cluster)
    flink.advance(2, took_ms=9_000)
    looking.look(cluster)
    watched_incidents.judge_watched(timezone.now())
    assert open_causes() == ["flink-slow-checkpoints"]

    long_ago = timezone.now() - timedelta(minutes=5)
    FlinkCheckpoint.objects.update(ended_at=long_ago)
    watched_incidents.judge_watched(timezone.now())
    assert "flink-no-checkpoint" in open_causes()


def test_a_dead_cluster_sends_one_message_and_keeps_its_jobs_incidents(settings: Any) -> None:
    settings.MAIL_IS_SET = True
    Channel.objects.create(
        name="on-call",
        kind=ChannelKind.MAIL,
        address="on-call@example.org",
        created_by="ada",
        created_at=timezone.now(),
    )
    with recorded_flink("2.3") as flink:
        flink.move_to(timezone.now())
        cluster = watched(flink)
        flink.advance(FAILED_IN_A_ROW, status="FAILED")
        looking.look(cluster)
        watched_incidents.judge_watched(timezone.now())
    looking.look(cluster)
    now = timezone.now()

    watched_incidents.judge_watched(now + timedelta(seconds=5))
    assert open_causes() == ["flink-checkpoints-fail"]
    for seconds in (70, 80, 300):
        watched_incidents.judge_watched(now + timedelta(seconds=seconds))
        evaluation.evaluate(now + timedelta(seconds=seconds))

    assert open_causes() == ["flink-checkpoints-fail", "flink-silent"]
    assert [each.news for each in Delivery.objects.all()] == [News.FIRED] * 2
    told = delivery.message_of(Delivery.objects.get(watched_incident__cause="flink-silent"))
    assert told.subject == "ftdash: prod: The Flink cluster does not answer"
    assert (told.flink_cluster, told.flink_job, told.query) == ("prod", None, None)
    Delivery.objects.update(due_at=now)
    delivery.deliver_due()
    assert {each.subject for each in mail.outbox} == {
        "ftdash: counted (prod): Checkpoints of the Flink job fail",
        "ftdash: prod: The Flink cluster does not answer",
    }

    registration.remove(name="prod", requester="ada", reason="x")
    assert not WatchedIncident.objects.exists()
