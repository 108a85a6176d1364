"""The settings page: all users read it, admins change it, and secrets are shown once."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from ftdash.accounts import queries, services
from ftdash.accounts.models import AdminAction, ApiToken, SentForm, TokenScope
from ftdash.accounts.services import Role
from tests.web.people import opens, operator_user
from tests.web.settings_posts import hidden, post, settings_address

pytestmark = pytest.mark.usefixtures("site")


def test_an_operator_reads_people_and_tokens_but_is_offered_no_change(
    operator: Client,
) -> None:
    services.invite(name="eve", role=Role.ADMIN, requester="ada", reason="new here")
    services.create_token(name="ci", scope=TokenScope.ACT, created_by="ada", reason="nightly")

    for name in ("settings", "settings-regions"):
        page = operator.get(reverse(name)).content.decode()

        assert "one-time password not used yet" in page
        assert "see everything and act on pipelines" in page
        assert "nightly" in page
        assert "/settings/invite/" not in page
        assert "?of=" not in page


def test_before_the_first_token_and_change_the_page_says_what_that_means(operator: Client) -> None:
    page = operator.get(reverse("settings")).content.decode()

    assert "There is no token yet. Without one, only signed-in people can use the API." in page
    assert "Nothing has been changed yet" in page


def test_an_invitation_shows_the_password_once(admin: Client) -> None:
    answer = post(admin, "invite", {"name": "eve", "role": "operator", "reason": "new here"})

    password = secret_of(answer.content.decode())
    assert opens("eve", password)
    assert "no-store" in answer["Cache-Control"]
    assert password not in admin.get(reverse("settings")).content.decode()


def test_a_token_is_made_with_scope_and_expiry_shown_once_and_revoked(admin: Client) -> None:
    given = {"name": "ci", "scope": "read", "days": "30", "reason": "nightly"}

    answer = post(admin, "make-token", given)

    secret = secret_of(answer.content.decode())
    assert "no-store" in answer["Cache-Control"]
    assert secret not in admin.get(reverse("settings")).content.decode()
    program = Client(headers={"Authorization": f"Bearer {secret}"})
    assert program.get("/v1/config").status_code == 200
    made = ApiToken.objects.get()
    assert made.scope == TokenScope.READ
    assert abs(made.expires_at - made.created_at - timedelta(days=30)) < timedelta(minutes=1)
    again = post(admin, "make-token", given)
    assert again.status_code == 422
    assert "There is, or was, a token 'ci'" in unescape(again.content.decode())
    gone = post(admin, "revoke-token", {"reason": "leaked", "confirmation": "ci"}, of="ci")
    assert gone["Location"] == reverse("settings")
    assert program.get("/v1/config").status_code == 401


@pytest.mark.parametrize(
    ("action", "given", "of"),
    [
        ("reset-password", {}, "olaf"),
        ("invite", {"name": "eve", "role": "operator"}, ""),
        ("make-token", {"name": "ci", "scope": "read", "days": "30"}, ""),
        ("make-webhook", {"name": "ops", "address": "https://1.1.1.1/", "pipeline": ""}, ""),
    ],
)
def test_reloading_a_page_with_a_secret_changes_nothing_and_says_so(
    admin: Client, action: str, given: dict[str, str], of: str
) -> None:
    operator_user("olaf")
    where = settings_address(action, of)
    sent = {**hidden(admin.get(where).content.decode()), **given, "reason": "forgot"}

    first, second = admin.post(where, sent), admin.post(where, sent)

    assert secret_of(first.content.decode())
    assert second.status_code == 422
    page = unescape(second.content.decode())
    assert "You already sent this form on " in page
    assert "the secret you were given then is still valid" in page
    assert 'class="secret"' not in page
    assert AdminAction.objects.count() == 1


def test_a_reload_keeps_the_issued_password_and_a_new_form_replaces_it(
    admin: Client,
) -> None:
    operator_user("olaf")
    where, reason = settings_address("reset-password", "olaf"), {"reason": "forgot"}
    sent = hidden(admin.get(where).content.decode()) | reason
    password = secret_of(admin.post(where, sent).content.decode())

    again = admin.post(where, sent)

    assert opens("olaf", password)
    another = admin.post(where, hidden(again.content.decode()) | reason)
    assert opens("olaf", secret_of(another.content.decode()))
    assert not opens("olaf", password)


def test_a_form_that_was_refused_can_be_sent_again(admin: Client) -> None:
    services.invite(name="eve", role=Role.OPERATOR, requester="ada", reason="new here")
    where = settings_address("invite")
    mark = hidden(admin.get(where).content.decode())
    given = mark | {"role": "operator", "reason": "new here"}

    refused = admin.post(where, given | {"name": "eve"})

    assert refused.status_code == 422
    assert not SentForm.objects.exists()
    assert secret_of(admin.post(where, given | {"name": "bob"}).content.decode())


@pytest.mark.parametrize("mark", ["", "x", "a:b:c"])
def test_a_form_with_an_unknown_mark_is_refused(admin: Client, mark: str) -> None:
    operator_user("olaf")

    answer = admin.post(
        settings_address("reset-password", "olaf"), {"reason": "forgot", "mark": mark}
    )

    assert answer.status_code == 422
    assert "This form is too old" in answer.content.decode()
    assert not AdminAction.objects.exists()


def test_an_expired_form_is_refused(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    operator_user("olaf")
    monkeypatch.setattr(services, "VALID_FOR", timedelta(seconds=-1))

    answer = post(admin, "reset-password", {"reason": "forgot"}, of="olaf")

    assert "This form is too old" in answer.content.decode()
    assert not AdminAction.objects.exists()


def test_a_token_may_be_made_without_an_expiry(admin: Client) -> None:
    post(admin, "make-token", {"name": "ci", "scope": "read", "days": "", "reason": "nightly"})

    assert ApiToken.objects.get().expires_at is None


def test_a_person_is_changed_from_the_page(admin: Client) -> None:
    operator_user("olaf")

    offered = admin.get(settings_address("role", "olaf")).content.decode()
    assert '<option value="admin" selected>' in offered, "the role that olaf does not have"
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
def test_a_deactivation_needs_the_name_typed(admin: Client, confirmation: str) -> None:
    operator_user("olaf")

    given = {"reason": "leaves", "confirmation": confirmation}
    answer = post(admin, "deactivate", given, of="olaf")

    assert answer.status_code == 422
    assert queries.person("olaf").is_active


def test_a_refusal_shows_its_reason_and_keeps_what_was_typed(admin: Client) -> None:
    given = {"reason": "I leave", "confirmation": "ada"}

    answer = post(admin, "deactivate", given, of="ada")

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "ada is the last admin" in page
    assert 'value="I leave"' in page


@pytest.mark.parametrize("action", ["role", "deactivate", "reset-password", "revoke-token", "fly"])
def test_unknown_names_are_not_found(admin: Client, action: str) -> None:
    answer = admin.get(reverse("settings-action", args=[action]) + "?of=nobody")

    assert answer.status_code == 404


def test_names_are_escaped(admin: Client) -> None:
    operator_user("<b>olaf</b>")

    page = admin.get(reverse("settings")).content.decode()

    assert "<b>olaf" not in page
    assert "?of=%3Cb%3Eolaf%3C%2Fb%3E" in page


def secret_of(page: str) -> str:
    found = re.search(r'<pre class="secret"[^>]*>([^<]+)</pre>', page)
    assert found, page
    return unescape(found.group(1))
