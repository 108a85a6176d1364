"""Settings through our own interface: changed by the services of the pages, and logged alike."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from ftdash.accounts import queries
from ftdash.accounts.models import ApiToken, TokenScope
from ftdash.accounts.services import Role
from ftdash.alerts import delivery, evaluation
from ftdash.alerts import queries as alert_queries
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import AlertRule, Channel, Delivery, News
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.jobs.models import Pipeline
from tests.web.api_callers import bearer, running
from tests.web.people import came_in, opens, operator_user

pytestmark = pytest.mark.usefixtures("site", "patient")

BAND = {"fire_above": 60.0, "fire_after_s": 10.0, "clear_below": 30.0, "clear_after_s": 30.0}
RULE = {"name": "late / output", "watched": "SINCE_OUTPUT", "band": BAND}
WEBHOOK = {"name": "ops", "address": "https://1.1.1.1/hooks/hidden-part"}
TOKEN = {"name": "ci", "scope": "read", "expires_at": None}
CHOSEN = "correct horse battery"


@pytest.fixture(autouse=True)
def _only_what_a_test_makes(site: Path) -> None:
    """Deletes the rules of a new installation."""
    AlertRule.objects.all().delete()


@pytest.fixture
def program() -> Client:
    return bearer(TokenScope.CONFIGURE)


def test_making_a_rule_for_a_pipeline_returns_it_as_a_later_read_does(program: Client) -> None:
    running()

    answer = post(program, "alerts/rules", {**RULE, "pipeline": "flights"})

    assert answer.status_code == 200, answer.content
    assert program.get("/api/alerts/rules").json() == [answer.json()]
    made = answer.json()
    assert (made["name"], made["pipeline"], made["band"], made["is_on"]) == (
        "late / output",
        "flights",
        BAND,
        True,
    )


def test_the_band_of_a_rule_is_changed(program: Client) -> None:
    post(program, "alerts/rules", RULE)
    band = {**BAND, "fire_above": 90.0}

    answer = post(program, "alerts/rules/change", {"name": RULE["name"], "band": band})

    assert answer.json()["band"] == band
    assert alert_queries.rules()[0].band == Band(**band)


def test_switching_a_rule_off_clears_its_firing_alerts(program: Client) -> None:
    running()
    post(program, "alerts/rules", RULE)
    rule, pipeline = AlertRule.objects.get(), Pipeline.objects.get()
    evaluation.fire(rule, pipeline, 95.0, timezone.now(), fire_above=60.0)
    off = {"name": RULE["name"], "is_on": False}

    answer = post(program, "alerts/rules/switch", off)

    assert not answer.json()["is_on"]
    assert program.get("/api/alerts").json() == []
    again = post(program, "alerts/rules/switch", off)
    assert (again.status_code, sentence(again)) == (
        422,
        "The rule 'late / output' is off already.",
    )


def test_deleting_a_rule_returns_the_remaining_rules(program: Client) -> None:
    post(program, "alerts/rules", RULE)
    post(program, "alerts/rules", {**RULE, "name": "other"})

    answer = post(program, "alerts/rules/delete", {"name": RULE["name"]})

    assert [rule["name"] for rule in answer.json()] == ["other"]
    assert [rule.name for rule in alert_queries.rules()] == ["other"]


def test_making_a_webhook_returns_its_key(program: Client) -> None:
    answer = post(program, "alerts/channels/webhooks", WEBHOOK)

    assert answer.status_code == 200, answer.content
    made = Channel.objects.get()
    assert answer.json() == {"name": "ops", "key": delivery.key_of(made.key_salt)}
    assert made.address == WEBHOOK["address"]


def test_a_mail_channel_is_made_once_a_mail_server_is_known(program: Client, settings: Any) -> None:
    asked = {"name": "night", "addresses": "ann@example.org, bob@example.org"}

    without_server = post(program, "alerts/channels/mails", asked)
    settings.MAIL_IS_SET = True
    answer = post(program, "alerts/channels/mails", asked)

    assert "No mail server is known" in sentence(without_server)
    assert (answer.json()["kind"], answer.json()["address"]) == ("MAIL", asked["addresses"])
    assert program.get("/api/alerts/channels").json() == [answer.json()]


def test_a_test_is_sent_to_a_channel(program: Client) -> None:
    post(program, "alerts/channels/webhooks", WEBHOOK)

    answer = post(program, "alerts/channels/ops/test", {})

    assert (answer.json()["waiting"], answer.json()["newest"]["news"]) == (1, "TEST")
    assert Delivery.objects.get().news == News.TEST


def test_a_channel_is_deleted(program: Client) -> None:
    post(program, "alerts/channels/webhooks", WEBHOOK)

    answer = post(program, "alerts/channels/ops/delete", {})

    assert answer.json() == []
    assert not Channel.objects.exists()


def test_the_history_limit_can_be_set_to_an_offered_choice(program: Client) -> None:
    offered = program.get("/api/history/CHECKPOINTS/choices").json()
    choice = next(each for each in offered if not each["is_chosen"])

    answer = post(program, "history/CHECKPOINTS", {"keep": choice["keep"]})

    assert answer.status_code == 200, answer.content
    assert answer.json()["keep"] == choice["keep"]
    assert limits.kept_for(Kind.CHECKPOINTS) == limits.choices(Kind.CHECKPOINTS)[0]
    (kept,) = (each for each in program.get("/api/history").json() if each["kind"] == "CHECKPOINTS")
    assert kept == answer.json()


@pytest.mark.parametrize("keep", ["PT1S", "P999999D", "-P1D"])
def test_a_history_limit_that_is_not_offered_is_refused(program: Client, keep: str) -> None:
    answer = post(program, "history/METRICS", {"keep": keep})

    assert answer.status_code == 422
    assert "cannot be kept for" in sentence(answer)
    assert limits.kept_for(Kind.METRICS) == limits.default(Kind.METRICS)


def test_making_a_token_returns_a_secret_that_opens_the_api(admin: Client) -> None:
    ends = timezone.now() + timedelta(days=7)

    answer = post(admin, "tokens", {**TOKEN, "expires_at": ends.isoformat()})

    assert answer.status_code == 200, answer.content
    assert "no-store" in answer["Cache-Control"]
    holder = Client(headers={"Authorization": f"Bearer {answer.json()['secret']}"})
    assert holder.get("/api/pipelines").status_code == 200
    assert (ApiToken.objects.get().created_by, ApiToken.objects.get().expires_at) == ("ada", ends)


def test_a_request_for_a_token_has_to_state_its_expiry(admin: Client) -> None:
    answer = post(admin, "tokens", {"name": "ci", "scope": "read"})

    assert (answer.status_code, sentence(answer)) == (422, "body.expires_at: Field required")


def test_a_revoked_token_opens_nothing(admin: Client) -> None:
    secret = post(admin, "tokens", TOKEN).json()["secret"]

    answer = post(admin, "tokens/ci/revoke", {})

    assert answer.json()["revoked_by"] == "ada"
    holder = Client(headers={"Authorization": f"Bearer {secret}"})
    assert holder.get("/api/pipelines").status_code == 401


def test_an_invited_person_signs_in_with_the_returned_password(admin: Client) -> None:
    answer = post(admin, "people", {"name": "eve", "role": "admin"})

    assert answer.status_code == 200, answer.content
    assert opens("eve", answer.json()["password"])
    assert queries.person("eve").role is Role.ADMIN
    assert queries.person("eve").must_choose_password


def test_a_role_is_changed(admin: Client) -> None:
    operator_user("olaf")

    answer = post(admin, "people/olaf/role", {"role": "admin"})

    assert (answer.json()["name"], answer.json()["role"]) == ("olaf", "admin")
    assert queries.person("olaf").role is Role.ADMIN


def test_a_new_one_time_password_ends_the_sessions_of_the_person(admin: Client) -> None:
    made = post(admin, "people", {"name": "eve", "role": "operator"}).json()
    session = came_in("eve", made["password"])

    answer = post(admin, "people/eve/password", {})

    assert opens("eve", answer.json()["password"])
    assert not opens("eve", made["password"])
    assert "/login/" in session.get("/")["Location"]


def test_a_deactivated_person_cannot_sign_in_until_reactivated(admin: Client) -> None:
    made = post(admin, "people", {"name": "eve", "role": "operator"}).json()

    out = post(admin, "people/eve/deactivate", {})

    assert not out.json()["is_active"]
    assert not opens("eve", made["password"])
    back = post(admin, "people/eve/reactivate", {})
    assert opens("eve", back.json()["password"])


@pytest.mark.parametrize(
    ("address", "given", "words"),
    [
        ("people/ada/deactivate", {}, "ada is the last admin who has signed in"),
        ("people/ada/role", {"role": "operator"}, "ada is the last admin who has signed in"),
        ("people/ada/password", {}, "ada is the last admin who has signed in"),
        ("people/nobody/role", {"role": "admin"}, "There is no person named 'nobody'."),
        ("people", {"name": "ADA", "role": "operator"}, "There is or was a person named 'ADA'"),
        ("tokens", {**TOKEN, "name": "C I"}, "The token name 'C I' cannot be used"),
        ("tokens", {**TOKEN, "expires_at": "2020-01-01T00:00:00Z"}, "expire later than now"),
        ("tokens/ci/revoke", {}, "There is no token 'ci' to revoke"),
        ("alerts/rules", {**RULE, "pipeline": "nothing"}, "no pipeline 'nothing'"),
        ("alerts/rules", {**RULE, "band": {**BAND, "clear_below": 61.0}}, "at or below the value"),
        ("alerts/rules", {**RULE, "band": {**BAND, "fire_above": 1e308}}, "at most"),
        ("alerts/rules/change", {"name": "x", "band": BAND}, "There is no rule 'x'."),
        (
            "alerts/channels/webhooks",
            {"name": "ops", "address": "https://127.0.0.1/"},
            "not a public address",
        ),
        ("alerts/channels/ops/test", {}, "There is no channel 'ops'."),
        ("alerts/rules", {**RULE, "reason": " "}, "Say why in a few words"),
    ],
)
def test_a_refusal_repeats_the_sentence_of_the_service_and_changes_nothing(
    admin: Client, address: str, given: dict[str, Any], words: str
) -> None:
    answer = post(admin, address, given)

    assert answer.status_code == 422, answer.content
    assert words in sentence(answer)
    assert queries.admin_actions() == []
    assert [person.name for person in queries.people()] == ["ada"]
    assert not ApiToken.objects.exists()
    assert not AlertRule.objects.exists()
    assert not Channel.objects.exists()


def test_each_change_is_logged_with_who_and_why(admin: Client) -> None:
    changes: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
        ("alerts/rules", RULE, ("made", "rule late / output")),
        ("alerts/rules/delete", {"name": RULE["name"]}, ("deleted", "rule late / output")),
        ("alerts/channels/webhooks", WEBHOOK, ("made", "channel ops")),
        ("alerts/channels/ops/test", {}, ("tested", "channel ops")),
        ("alerts/channels/ops/delete", {}, ("deleted", "channel ops")),
        ("history/METRICS", {"keep": "PT3600S"}, ("changed", "history of metrics")),
        ("tokens", TOKEN, ("made", "token ci")),
        ("tokens/ci/revoke", {}, ("revoked", "token ci")),
        ("people", {"name": "eve", "role": "operator"}, ("invited", "person eve")),
        ("people/eve/role", {"role": "admin"}, ("made admin", "person eve")),
        ("people/eve/password", {}, ("gave a new one-time password to", "person eve")),
        ("people/eve/deactivate", {}, ("deactivated", "person eve")),
        ("people/eve/reactivate", {}, ("reactivated", "person eve")),
    ]

    for address, given, _ in changes:
        assert post(admin, address, given).status_code == 200, address

    logged = admin.get("/api/settings/log").json()
    assert [(each["what"], each["subject"]) for each in reversed(logged)] == [
        line for _, _, line in changes
    ]
    assert {(each["who"], each["reason"]) for each in logged} == {("ada", "drill")}


def test_the_log_names_the_token_that_made_a_change(program: Client) -> None:
    post(program, "alerts/rules", RULE)

    assert queries.admin_actions()[0].who == "token deploy"


def test_no_secret_is_returned_twice(admin: Client) -> None:
    running()
    webhook = post(admin, "alerts/channels/webhooks", WEBHOOK).json()
    token = post(admin, "tokens", TOKEN).json()
    person = post(admin, "people", {"name": "eve", "role": "operator"}).json()
    post(admin, "alerts/channels/ops/test", {})
    secrets = [
        webhook["key"],
        token["secret"],
        person["password"],
        "hidden-part",
        Channel.objects.get().key_salt,
        ApiToken.objects.get().digest,
    ]

    for address in ("alerts/channels", "alerts/rules", "tokens", "people", "settings/log"):
        shown = admin.get(f"/api/{address}").content.decode()

        assert not [secret for secret in secrets if secret in shown], address
    again = [
        post(admin, "alerts/channels/webhooks", WEBHOOK),
        post(admin, "tokens", TOKEN),
        post(admin, "people", {"name": "eve", "role": "operator"}),
    ]
    assert [answer.status_code for answer in again] == [422] * 3


def post(client: Client, address: str, given: dict[str, Any]) -> Any:
    body = json.dumps({"reason": "drill", **given})
    return client.post(f"/api/{address}", body, content_type="application/json")


def sentence(answer: HttpResponse) -> str:
    found: str = answer.json()["errors"][0]  # type: ignore[attr-defined]
    return found
