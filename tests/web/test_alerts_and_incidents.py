"""Alerts follow their value and name their incident; a silence holds messages back, not alerts."""

import json
import random
from collections import defaultdict
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.accounts.models import AdminAction
from ftdash.alerts import delivery, evaluation, queries, services
from ftdash.alerts.delivery import message_of
from ftdash.alerts.evaluation import EXPLAINED_BY, evaluate, incident_of
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Alert, AlertRule, Channel, Delivery, News, Silence, Watched
from ftdash.incidents import services as incident_services
from ftdash.incidents.causes import OF_FAILURES, Cause, advice_on
from ftdash.incidents.models import Incident
from ftdash.jobs.models import Pipeline, Run
from ftdash.projection.projector import Projector
from pipelines.domain.errors import FailureKind, Rejected
from pipelines.domain.events import FailureOccurred
from pipelines.domain.status import JobStatus
from tests.commit_share import share_of
from tests.web.journals import Story, new_run
from tests.web.settings_posts import post, settings_address

pytestmark = pytest.mark.usefixtures("site")

AT_ONCE = Band(fire_above=0.5, fire_after_s=0.0, clear_below=0.5, clear_after_s=0.0)
SEEDS, SHARE = 60, 4
NEXT_STEP = advice_on(Cause.DISK_FULL, has_failed=True).step


@pytest.fixture(autouse=True)
def _no_other_rule(site: None) -> None:
    AlertRule.objects.all().delete()


def test_a_firing_alert_shows_the_current_value_and_a_cleared_one_the_last(
    operator: Client,
) -> None:
    fire(95.0)
    now = timezone.now()

    read(610.0, now)

    [alert] = queries.firing()
    assert (alert.fired_value, alert.newest_value, alert.newest_at) == (95.0, 610.0, now)
    assert "10 min 10 s now, 1 min 35 s when it fired; it fires above" in alert.sentence
    assert "10 min 10 s now" in operator.get("/").content.decode()
    evaluation.clear(Alert.objects.all(), "The run is over.", now)
    read(700.0, now + timedelta(seconds=5))
    assert Alert.objects.get().newest_value == 610.0
    assert "now" not in queries.history(1, 10).rows[0].sentence


def test_an_unknown_value_leaves_the_last_known_one() -> None:
    fire(95.0)
    read(610.0, timezone.now())

    evaluation.follow({}, timezone.now())

    assert Alert.objects.get().newest_value == 610.0


def test_every_page_with_an_alert_links_the_incident_that_explains_it(
    operator: Client,
) -> None:
    incident = failed_run()
    channel()
    rule(Watched.FAILED_RUN)

    evaluate(timezone.now())

    [alert] = queries.firing()
    assert alert.incident is not None
    assert (alert.incident.key, alert.incident.cause) == (incident.pk, Cause.DISK_FULL)
    link = reverse("incident", args=[incident.pk])
    for address in ("/", "/pipelines/flights/", reverse("alerts"), reverse("event-log")):
        assert link in operator.get(address).content.decode(), address
    page = operator.get(link).content.decode()
    assert "late" in page.partition('id="region-alerts"')[2]
    assert "late: " in operator.get(reverse("post-mortem", args=[incident.pk])).content.decode()
    [told] = operator.get("/api/alerts").json()
    assert told["incident"]["next_step"] == NEXT_STEP


def test_a_message_carries_the_incident_with_cause_next_step_and_address(settings: Any) -> None:
    settings.BASE_URL = "https://ftdash.example.org/"
    incident = failed_run()
    channel()
    rule(Watched.FAILED_RUN)

    evaluate(timezone.now())

    message = message_of(Delivery.objects.get())
    assert message.incident == delivery.Explanation(
        id=incident.pk,
        cause="disk-full",
        title="A disk is full",
        text="No space left on device: /x",
        next_step=NEXT_STEP,
        url=f"https://ftdash.example.org/incidents/{incident.pk}/",
    )
    assert "A disk is full: No space left on device: /x" in message.text
    assert f"Next: {NEXT_STEP}" in message.text
    assert message.text.endswith(f"/incidents/{incident.pk}/")


def test_an_alert_names_a_later_incident_and_replaces_a_closed_one() -> None:
    fire(95.0)
    assert queries.firing()[0].incident is None
    first = opened(Cause.NO_CHECKPOINT)

    read(100.0, timezone.now())

    assert queries.firing()[0].incident.key == first.pk
    Incident.objects.update(closed_at=timezone.now())
    read(100.0, timezone.now())
    assert queries.firing()[0].incident.is_over
    second = opened(Cause.SLOT_LOST)
    read(100.0, timezone.now())
    assert queries.firing()[0].incident.key == second.pk


def test_an_alert_belongs_to_no_incident_of_another_pipeline() -> None:
    running("views")
    fire(95.0)
    views, now = Pipeline.objects.get(name="views"), timezone.now()
    evaluation.fire(AlertRule.objects.get(), views, 95.0, now, fire_above=60.0)
    opened(Cause.SLOT_LOST, "views")

    evaluation.follow({}, now)

    assert queries.firing("flights")[0].incident is None
    assert queries.firing("views")[0].incident is not None


def test_every_watched_value_has_causes_and_failures_explain_most_of_them() -> None:
    assert set(EXPLAINED_BY) == set(Watched)
    for watched, causes in EXPLAINED_BY.items():
        assert causes, watched
        assert causes >= OF_FAILURES or watched is Watched.DAMAGED_POINTS


def test_a_failure_explains_more_than_a_clock_and_the_newest_failure_wins() -> None:
    running()
    clock = opened(Cause.NO_CHECKPOINT)
    older, newer = opened(Cause.SLOT_LOST), opened(Cause.DISK_FULL)

    assert incident_of(Watched.SINCE_CHECKPOINT, [clock, newer, older]) == newer
    assert incident_of(Watched.SINCE_CHECKPOINT, [clock]) == clock
    assert incident_of(Watched.DAMAGED_POINTS, [clock, newer, older]) is None


def test_a_silenced_alert_is_shown_and_sends_its_message_when_the_silence_is_over() -> None:
    channel()
    now = timezone.now()
    silenced(now + timedelta(hours=1), pipeline=running())
    fire(95.0)
    evaluation.follow({}, now)
    assert not Delivery.objects.exists()
    [alert] = queries.firing()
    assert alert.silence.created_by == "ada"

    for seconds in (0, 5):
        evaluation.follow({}, now + timedelta(hours=1, seconds=seconds))

    assert [each.news for each in Delivery.objects.all()] == [News.FIRED]


def test_an_alert_that_clears_under_a_silence_sends_nothing_at_all() -> None:
    channel()
    silenced(timezone.now() + timedelta(hours=1))
    fire(95.0)

    evaluation.clear(Alert.objects.all(), "It is well.", timezone.now())
    evaluation.follow({}, timezone.now() + timedelta(hours=2))

    assert not Delivery.objects.exists()


def test_an_alert_sent_before_a_silence_sends_its_cleared_message() -> None:
    channel()
    fire(95.0)
    silenced(timezone.now() + timedelta(hours=1))

    evaluation.clear(Alert.objects.all(), "It is well.", timezone.now())

    assert [each.news for each in Delivery.objects.order_by("pk")] == [News.FIRED, News.CLEARED]


@pytest.mark.parametrize(("rule_name", "pipeline"), [("other", None), (None, "views")])
def test_a_silence_of_another_rule_or_pipeline_holds_nothing_back(
    rule_name: str | None, pipeline: str | None
) -> None:
    running("views")
    rule(Watched.SINCE_OUTPUT, "other")
    channel()
    silenced(timezone.now() + timedelta(hours=1), rule_name=rule_name, pipeline=pipeline)

    fire(95.0)

    assert Delivery.objects.count() == 1


def test_no_silence_loses_a_message_or_sends_an_end_without_a_beginning() -> None:
    channel()
    running()
    found, pipeline = rule(Watched.SINCE_CHECKPOINT), Pipeline.objects.get(name="flights")

    for seed in share_of(range(SEEDS), SHARE):
        with transaction.atomic():
            walk_between_silences(seed, found, pipeline)
            transaction.set_rollback(True)  # the next walk begins without alerts and silences


def walk_between_silences(seed: int, rule: AlertRule, pipeline: Pipeline) -> None:
    draws, now = random.Random(seed), timezone.now()
    for _ in range(40):
        now += timedelta(seconds=draws.randint(1, 30))
        match draws.randrange(4):
            case 0 if not Alert.objects.filter(cleared_at=None).exists():
                evaluation.fire(rule, pipeline, 95.0, now, fire_above=60.0)
            case 1:
                evaluation.clear(Alert.objects.all(), "It is well.", now)
            case 2:
                Silence.objects.create(
                    until=now + timedelta(seconds=draws.randint(1, 60)),
                    reason="x",
                    created_by="ada",
                    created_at=now,
                )
        evaluation.follow({}, now)
        alerts, news = Alert.objects.all(), defaultdict(list)
        for alert_id, what in Delivery.objects.order_by("pk").values_list("alert", "news"):
            news[alert_id].append(what)
        for alert in alerts:
            expected: list[str] = [News.FIRED] if alert.is_sent else []
            if alert.cleared_at and alert.is_sent:
                expected.append(News.CLEARED)
            assert news[alert.pk] == expected, seed
        is_waiting = any(each.cleared_at is None and not each.is_sent for each in alerts)
        assert evaluation.silences(now) or not is_waiting, seed


def test_an_admin_silences_an_alert_and_ends_the_silence(admin: Client) -> None:
    fire(95.0)
    alert = str(Alert.objects.get().pk)
    form = admin.get(settings_address("silence", alert)).content.decode()
    assert '<option value="late" selected>' in form

    given = {"rule": "late", "pipeline": "flights", "hours": "4", "reason": "we move the disks"}
    answer = post(admin, "silence", given, of=alert)

    assert answer["Location"] == reverse("alerts")
    page = admin.get(reverse("alerts")).content.decode()
    assert "we move the disks" in page
    assert "silenced" in page
    assert "silenced until" in admin.get("/").content.decode()
    [row] = queries.silences()
    assert timedelta(hours=3.9) < row.until - timezone.now() <= timedelta(hours=4)
    post(admin, "end-silence", {"reason": "done"}, of=str(row.key))
    assert not queries.silences()[0].is_on
    assert queries.firing()[0].silence is None
    logged = [(each.what, each.subject) for each in AdminAction.objects.order_by("pk")]
    assert logged == [
        ("silenced", "rule late for flights"),
        ("ended the silence of", "rule late for flights"),
    ]
    again = post(admin, "end-silence", {"reason": "done"}, of=str(row.key))
    assert "is over already" in again.content.decode()


def test_a_silence_needs_an_end_and_a_reason() -> None:
    running()
    now = timezone.now()
    for until in (now - timedelta(seconds=1), now + timedelta(days=31)):
        with pytest.raises(Rejected, match="ends in the future"):
            silenced(until)
    with pytest.raises(Rejected, match="Say why"):
        silenced(now + timedelta(hours=1), reason=" ")
    with pytest.raises(Rejected, match="no rule 'nothing'"):
        silenced(now + timedelta(hours=1), rule_name="nothing")
    with pytest.raises(Rejected, match="There is no silence 7"):
        services.end_silence(key=7, requester="ada", reason="done")


def test_the_api_creates_lists_and_ends_silences(admin: Client) -> None:
    fire(95.0)
    until = (timezone.now() + timedelta(hours=1)).isoformat()

    made = call(admin, "alerts/silences", {"pipeline": "flights", "until": until})

    assert made["is_on"]
    assert admin.get("/api/alerts/silences").json() == [made]
    assert admin.get("/api/alerts").json()[0]["silence"] == made
    assert not call(admin, f"alerts/silences/{made['key']}/end", {})["is_on"]


def test_the_command_silences_lists_and_acknowledges() -> None:
    fire(95.0)
    key = Alert.objects.get().pk

    said = command("silence", "--pipeline", "flights", "--minutes", "30", "--reason", "disks")

    silence = queries.silences()[0]
    assert said == f"Silence {silence.key}.\n"
    assert "late for" not in command("silences")
    assert "disks" in command("silences")
    assert f"{key}  flights: late. Time since" in command("list")
    assert "silenced until" in command("list")
    assert json.loads(command("list", "--json"))[0]["silence"]["key"] == silence.key
    command("end-silence", str(silence.key), "--reason", "done")
    command("acknowledge", str(key), "--reason", "mine")
    assert "acknowledged by" in command("list")
    with pytest.raises(CommandError, match="ends in the future") as refusal:
        command("silence", "--minutes", "9" * 30, "--reason", "for ever")
    assert refusal.value.returncode == 2


def command(*words: str) -> str:
    out = StringIO()
    call_command("alerts", *words, stdout=out)
    return out.getvalue()


def call(client: Client, address: str, body: dict[str, Any]) -> dict[str, Any]:
    given = json.dumps({"reason": "we move the disks"} | body)
    answer = client.post(f"/api/{address}", given, content_type="application/json")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def running(name: str = "flights") -> str:
    Story(new_run(name)).started().sampled().completed()
    Projector().run_once()
    return name


def failed_run() -> Incident:
    """Makes a run that a full disk ended, and returns its incident."""
    story = Story(new_run()).started().completed()
    story.wait(100).tell(
        FailureOccurred(
            cause="No space left on device: /x",
            detail="",
            slot=None,
            subtask=None,
            kind=FailureKind.DISK_FULL.value,
        )
    )
    Projector().run_once()
    Run.objects.update(status=JobStatus.FAILED.value, ended_at=timezone.now())
    incident_services.judge_all()
    return Incident.objects.get()


def opened(cause: Cause, pipeline: str = "flights") -> Incident:
    return Incident.objects.create(
        pipeline=Pipeline.objects.get(name=pipeline),
        cause=cause.value,
        text="it is so",
        opened_at=timezone.now(),
        last_at=timezone.now(),
    )


def rule(watched: Watched, name: str = "late") -> AlertRule:
    return AlertRule.objects.create(
        name=name,
        watched=watched,
        fire_above=AT_ONCE.fire_above,
        fire_after_s=AT_ONCE.fire_after_s,
        clear_below=AT_ONCE.clear_below,
        clear_after_s=AT_ONCE.clear_after_s,
    )


def fire(value: float) -> None:
    if not Pipeline.objects.filter(name="flights").exists():
        running()
    pipeline = Pipeline.objects.get(name="flights")
    found = rule(Watched.SINCE_CHECKPOINT)
    evaluation.fire(found, pipeline, value, timezone.now(), fire_above=60.0)


def read(value: float, now: datetime) -> None:
    alert = Alert.objects.get()
    evaluation.follow({(alert.rule_id, alert.pipeline_id): value}, now)


def channel() -> None:
    Channel.objects.create(
        name="ops",
        kind="MAIL",
        address="a@example.org",
        key_salt="",
        created_by="ada",
        created_at=timezone.now(),
    )


def silenced(
    until: datetime,
    *,
    rule_name: str | None = None,
    pipeline: str | None = None,
    reason: str = "we move the disks",
) -> None:
    services.make_silence(
        rule=rule_name, pipeline=pipeline, until=until, requester="ada", reason=reason
    )
