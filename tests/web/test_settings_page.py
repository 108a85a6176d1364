"""The page of settings: what everybody reads, what an admin changes, and secrets shown once."""

import re
from html import unescape

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from ftdash.accounts import people, queries, services
from ftdash.accounts.models import ApiToken, TokenScope
from ftdash.accounts.people import Role
from tests.web.people import opens, operator_user

pytestmark = pytest.mark.usefixtures("site")


def test_an_operator_reads_who_and_what_may_come_in_and_is_offered_no_change(
    operator: Client,
) -> None:
    people.invite(name="eve", role=Role.ADMIN, requester="ada", reason="new here")
    services.create_token(name="ci", scope=TokenScope.ACT, created_by="ada", reason="nightly")

    for name in ("settings", "settings-regions"):
        page = operator.get(reverse(name)).content.decode()

        assert "one-time password not used yet" in page
        assert "see everything and act on pipelines" in page
        assert "nightly" in page
        assert "/settings/invite/" not in page
        assert "?of=" not in page


def test_before_the_first_token_the_page_says_what_that_means(operator: Client) -> None:
    page = operator.get(reverse("settings")).content.decode()

    assert "No token was made yet" in page
    assert "Nothing was changed yet" in page


def test_an_invitation_shows_the_password_once(admin: Client) -> None:
    answer = post(admin, "invite", {"name": "eve", "role": "operator", "reason": "new here"})

    password = secret_of(answer.content.decode())
    assert opens("eve", password)
    assert "no-store" in answer["Cache-Control"]
    assert password not in admin.get(reverse("settings")).content.decode()


def test_a_token_is_made_with_scope_and_expiry_shown_once_and_revoked(admin: Client) -> None:
    given = {"name": "ci", "scope": "read", "days": "30", "reason": "nightly"}

    secret = secret_of(post(admin, "make-token", given).content.decode())

    program = Client(headers={"Authorization": f"Bearer {secret}"})
    assert program.get("/v1/config").status_code == 200
    assert ApiToken.objects.get().expires_at is not None
    again = post(admin, "make-token", given)
    assert again.status_code == 422
    assert "There is, or was, a token 'ci'" in unescape(again.content.decode())
    gone = post(admin, "revoke-token", {"reason": "leaked", "confirmation": "ci"}, of="ci")
    assert gone["Location"] == reverse("settings")
    assert program.get("/v1/config").status_code == 401


def test_a_token_may_be_made_without_an_end(admin: Client) -> None:
    post(admin, "make-token", {"name": "ci", "scope": "read", "days": "", "reason": "nightly"})

    assert ApiToken.objects.get().expires_at is None


def test_a_person_is_changed_from_the_page(admin: Client) -> None:
    operator_user("olaf")

    post(admin, "role", {"role": "admin", "reason": "on call"}, of="olaf")
    assert queries.person("olaf").role is Role.ADMIN
    answer = post(admin, "reset-password", {"reason": "forgot"}, of="olaf")
    assert opens("olaf", secret_of(answer.content.decode()))
    post(admin, "deactivate", {"reason": "leaves", "confirmation": "olaf"}, of="olaf")
    assert not queries.person("olaf").is_active
    answer = post(admin, "reactivate", {"reason": "is back"}, of="olaf")
    assert opens("olaf", secret_of(answer.content.decode()))

    assert [each.reason for each in queries.admin_actions()] == [
        "is back",
        "leaves",
        "forgot",
        "on call",
    ]
    assert {each.who for each in queries.admin_actions()} == {"ada"}


@pytest.mark.parametrize("confirmation", ["", "Olaf", "ada"])
def test_what_takes_something_away_asks_for_the_name(admin: Client, confirmation: str) -> None:
    operator_user("olaf")

    given = {"reason": "leaves", "confirmation": confirmation}
    answer = post(admin, "deactivate", given, of="olaf")

    assert answer.status_code == 422
    assert queries.person("olaf").is_active


def test_a_refusal_is_shown_with_what_was_typed(admin: Client) -> None:
    given = {"reason": "I leave", "confirmation": "ada"}

    answer = post(admin, "deactivate", given, of="ada")

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "ada is the last admin" in page
    assert 'value="I leave"' in page


@pytest.mark.parametrize("action", ["role", "deactivate", "reset-password", "revoke-token", "fly"])
def test_what_is_not_there_says_so(admin: Client, action: str) -> None:
    answer = admin.get(reverse("settings-action", args=[action]) + "?of=nobody")

    assert answer.status_code == 404


def test_names_are_escaped(admin: Client) -> None:
    operator_user("<b>olaf</b>")

    page = admin.get(reverse("settings")).content.decode()

    assert "<b>olaf" not in page
    assert "?of=%3Cb%3Eolaf%3C%2Fb%3E" in page


def post(client: Client, action: str, given: dict[str, str], of: str = "") -> HttpResponse:
    return client.post(reverse("settings-action", args=[action]) + f"?of={of}", given)


def secret_of(page: str) -> str:
    found = re.search(r'<pre class="secret"[^>]*>([^<]+)</pre>', page)
    assert found, page
    return unescape(found.group(1))
