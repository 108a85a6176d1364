"""Alerts on the pages: all users see them where they matter; admins handle them and set rules."""

from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.accounts.models import AdminAction
from ftdash.alerts import evaluation, queries, services
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Alert, AlertRule, Delivery, Evaluation, Watched
from ftdash.jobs.models import Pipeline
from ftdash.projection.projector import Projector
from pipelines.domain.errors import Rejected
from tests.web.default_rules import make_default_rules
from tests.web.journals import Story, new_run
from tests.web.people import admin_user, signed_in
from tests.web.settings_posts import post, settings_address

pytestmark = pytest.mark.usefixtures("site")

GIVEN = {
    "name": "late",
    "watched": "SINCE_CHECKPOINT",
    "pipeline": "",
    "fire_above": "60",
    "fire_after_s": "10",
    "clear_below": "30",
    "clear_after_s": "20",
    "reason": "promised to the team",
}


@pytest.fixture(autouse=True)
def _no_other_rule(site: None) -> None:
    AlertRule.objects.all().delete()


def test_a_new_installation_has_rules_for_failures_damage_lateness_and_restarts() -> None:
    make_default_rules()

    found = {rule.watched for rule in queries.rules()}

    assert found == {
        Watched.FAILED_RUN,
        Watched.DAMAGED_POINTS,
        Watched.SINCE_CHECKPOINT,
        Watched.SINCE_OUTPUT,
        Watched.FAILED_IN_ROW,
        Watched.RESTARTS_LATELY,
    }
    for rule in queries.rules():
        rule.band.check()


def test_a_firing_alert_is_on_the_first_page_and_on_its_pipelines_page_only(
    operator: Client,
) -> None:
    fire()
    running("views")

    for address in ("/", "/regions/", "/pipelines/flights/", "/pipelines/flights/regions/"):
        page = operator.get(address).content.decode()
        assert "late. Time since the last completed checkpoint: 1 min 35 s" in page, address
        assert "not acknowledged yet" in page
    assert "1 min 35 s; it fires" not in operator.get("/pipelines/views/").content.decode()


def test_an_operator_sees_firing_and_cleared_alerts_but_cannot_acknowledge(
    operator: Client,
) -> None:
    page = operator.get(reverse("alerts")).content.decode()
    assert "No rule has been evaluated yet" in page
    assert "No alert has cleared yet" in page
    Evaluation.objects.create(pk=1, at=timezone.now())
    assert "No alert is firing." in operator.get(reverse("alerts")).content.decode()
    fire()
    evaluation.clear(Alert.objects.all(), "The run is over.", timezone.now())
    fire("other")

    for name in ("alerts", "alerts-regions"):
        page = operator.get(reverse(name)).content.decode()

        assert "1 alert fires." in page
        assert "The run is over." in page
        assert "not acknowledged" in page
        assert "/settings/acknowledge/" not in page


def test_the_history_has_pages(operator: Client) -> None:
    for number in range(30):
        fire(f"rule {number}")
    evaluation.clear(Alert.objects.all(), "The run is over.", timezone.now())

    first = operator.get(reverse("alerts")).content.decode()
    second = operator.get(reverse("alerts") + "?page=2").content.decode()

    assert "page 1 of 2, 30 alerts" in first
    assert "rule 29" in first
    assert "rule 4<" in second
    assert "rule 29<" not in second


def test_the_first_page_shows_few_of_many_alerts_and_counts_the_rest(operator: Client) -> None:
    for number in range(8):
        fire(f"rule {number}")

    assert "3 more alerts fire" in operator.get("/").content.decode()


def test_an_admin_acknowledges_an_alert_once_and_everyone_sees_it(
    admin: Client, operator: Client
) -> None:
    fire()
    alert = str(Alert.objects.get().pk)
    asked = admin.get(settings_address("acknowledge", alert)).content.decode()
    assert "1 min 35 s" in asked
    assert '<p class="of">late of flights</p>' in asked

    answer = post(admin, "acknowledge", {"reason": "the disk is full"}, of=alert)

    assert answer["Location"] == reverse("alerts")
    for person in (admin, operator):
        assert "acknowledged by ada" in person.get("/").content.decode()
        assert "the disk is full" in person.get(reverse("alerts")).content.decode()
    assert AdminAction.objects.get().subject == "alert late of flights"
    second = signed_in(admin_user("bea"))
    again = post(second, "acknowledge", {"reason": "me too"}, of=alert)
    assert "ada has already acknowledged this alert" in again.content.decode()
    evaluation.clear(Alert.objects.all(), "The run is over.", timezone.now())
    late = post(second, "acknowledge", {"reason": "me too"}, of=alert)
    assert "has cleared already" in late.content.decode()


def test_an_admin_creates_changes_switches_and_deletes_a_rule(admin: Client) -> None:
    running()

    assert post(admin, "make-rule", GIVEN)["Location"] == reverse("settings")
    assert queries.rule("late").band == Band(60.0, 10.0, 30.0, 20.0)
    assert 'value="60"' in admin.get(settings_address("change-rule", "late")).content.decode()
    changed = {**GIVEN, "fire_above": "90"}
    post(admin, "change-rule", changed, of="late")
    assert queries.rule("late").band.fire_above == 90.0
    post(admin, "switch-off", {"reason": "planned"}, of="late")
    assert not queries.rule("late").is_on
    post(admin, "switch-on", {"reason": "done"}, of="late")
    assert queries.rule("late").is_on
    post(admin, "delete-rule", {"reason": "noise", "confirmation": "late"}, of="late")
    assert queries.rule("late") is None

    assert [each.what for each in AdminAction.objects.all()] == [
        "deleted",
        "switched on",
        "switched off",
        "changed",
        "made",
    ]
    assert [each.detail for each in AdminAction.objects.filter(what="changed")] == [
        "above 1 min 30 s for 10.0 s, until below 30.0 s for 20.0 s"
    ]


def test_the_log_of_rules_shows_bytes_in_readable_units() -> None:
    band = Band(64e6, 0.0, 16e6, 60.0)

    services.make_rule(
        name="full",
        watched=Watched.BUFFERED_BYTES,
        pipeline=None,
        band=band,
        requester="ada",
        reason="late",
    )

    assert AdminAction.objects.get().detail == (
        "bytes waiting in channels, above 64.0 MB at once, until below 16.0 MB for 1 min 00 s"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clear_below": "61"}, "clear at or below"),
        ({"fire_above": "nan"}, "Enter a number"),
        ({"fire_above": ""}, "required"),
        ({"pipeline": "nothing"}, "valid choice"),
        ({"watched": "weather"}, "valid choice"),
        ({"reason": " "}, "required"),
        ({"name": "a\u0007b"}, "1 to 80 letters"),
        ({"name": "taken"}, "There is a rule 'taken'"),
    ],
)
def test_an_invalid_rule_is_refused_with_the_reason(
    admin: Client, given: dict[str, str], words: str
) -> None:
    post(admin, "make-rule", {**GIVEN, "name": "taken"})

    answer = post(admin, "make-rule", {**GIVEN, **given})

    assert answer.status_code == 422
    assert words in unescape(answer.content.decode())
    assert AlertRule.objects.count() == 1


def test_the_number_of_rules_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "RULES_MAX", 1)
    band = Band(60.0, 0.0, 30.0, 0.0)
    values: dict[str, Any] = {"watched": Watched.SINCE_OUTPUT, "pipeline": None, "band": band}
    services.make_rule(name="one", requester="ada", reason="x", **values)

    with pytest.raises(Rejected, match="There are 1 rules already"):
        services.make_rule(name="two", requester="ada", reason="x", **values)


def test_an_admin_creates_tests_and_deletes_a_channel(admin: Client, settings: Any) -> None:
    settings.WEBHOOK_PRIVATE = True
    running()
    given = {"name": "ops", "pipeline": "flights", "reason": "the night shift"}

    made = post(admin, "make-webhook", {**given, "address": "http://127.0.0.1:9/x?key=open-sesame"})
    page = admin.get(reverse("settings")).content.decode()

    assert '<pre class="secret"' in made.content.decode()
    assert "http://127.0.0.1:9/…" in page
    assert "open-sesame" not in page
    assert "none yet" in page
    post(admin, "test-channel", {"reason": "is it on?"}, of="ops")
    assert "under way" in admin.get(reverse("settings-regions")).content.decode()
    Delivery.objects.update(given_up_at=timezone.now(), problem="It answered 500.")
    assert "It answered 500." in admin.get(reverse("settings-regions")).content.decode()
    post(admin, "delete-channel", {"reason": "moved", "confirmation": "ops"}, of="ops")
    assert queries.channels() == []


def test_a_mail_channel_can_be_made_only_with_a_mail_server(admin: Client, settings: Any) -> None:
    given = {"name": "team", "pipeline": "", "address": "a@example.org", "reason": "the team"}
    assert "FTDASH_MAIL_HOST" in post(admin, "make-mail", given).content.decode()

    settings.MAIL_IS_SET = True
    post(admin, "make-mail", given)

    assert [each.address for each in queries.channels()] == ["a@example.org"]


@pytest.mark.parametrize(
    "action",
    ["change-rule", "switch-off", "switch-on", "delete-rule", "test-channel", "delete-channel"],
)
def test_unknown_names_are_not_found(admin: Client, action: str) -> None:
    assert admin.get(settings_address(action, "nothing")).status_code == 404


@pytest.mark.parametrize("of", ["", "7", "x", "9" * 40])
def test_an_unknown_alert_is_not_found(admin: Client, of: str) -> None:
    assert admin.get(settings_address("acknowledge", of)).status_code == 404


def test_names_of_rules_are_escaped(admin: Client) -> None:
    fire("<b>late</b>")

    for where in ("/", reverse("alerts"), reverse("settings"), "/pipelines/flights/"):
        page = admin.get(where).content.decode()
        assert "<b>late" not in page
        assert "&lt;b&gt;late" in page, where


def running(name: str = "flights") -> None:
    Story(new_run(name)).started().sampled().completed()
    Projector().run_once()


def fire(rule_name: str = "late") -> None:
    if not Pipeline.objects.filter(name="flights").exists():
        running()
    rule = AlertRule.objects.create(
        name=rule_name,
        watched=Watched.SINCE_CHECKPOINT,
        fire_above=60.0,
        fire_after_s=10.0,
        clear_below=30.0,
        clear_after_s=10.0,
    )
    evaluation.fire(
        rule, Pipeline.objects.get(name="flights"), 95.0, timezone.now(), fire_above=60.0
    )
