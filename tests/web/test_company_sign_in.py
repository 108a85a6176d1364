"""Sign-in with company accounts through a real OpenID provider, whose groups set the role."""

import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from allauth.socialaccount.internal import jwtkit
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from ftdash.accounts import company, queries, services
from ftdash.accounts.company import Door, Identity, role_by_groups
from ftdash.accounts.models import AdminAction
from ftdash.accounts.services import Role
from ftdash.deployment import doctor
from pipelines.domain.errors import Rejected
from tests.openid_provider import Provider, openid_provider
from tests.web.people import admin_user, signed_in

CALLBACK = "http://testserver/oidc/company/login/callback/"
START = "/oidc/company/login/"
OPERATORS, ADMINS = frozenset({"data"}), frozenset({"platform", "on-call"})


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with openid_provider("--require-registration") as provider:
        yield provider


@pytest.fixture
def company_sign_in(provider: Provider, site: Path, settings: Any) -> Provider:
    settings.OIDC_ISSUER = provider.issuer
    settings.OIDC_CLIENT_ID, settings.OIDC_SECRET = provider.register(CALLBACK)
    settings.OPERATOR_GROUPS, settings.ADMIN_GROUPS = OPERATORS, ADMINS
    provider.tell("1", {"preferred_username": "olga", "groups": ["data", "chess"]})
    return provider


def test_a_group_member_signs_in_with_its_role_and_reaches_the_wanted_page(
    company_sign_in: Provider,
) -> None:
    client = Client()

    answer = came_by(company_sign_in, client, "1", wanted="/alerts/")

    assert (answer.status_code, answer["Location"]) == (302, "/alerts/")
    assert client.get("/alerts/").status_code == 200
    (olga,) = [each for each in queries.people() if each.is_of_company]
    assert (olga.name, olga.role) == ("olga", Role.OPERATOR)
    assert logged() == ["olga came in as person olga"]


def test_the_sign_in_page_links_to_the_company_without_a_script(company_sign_in: Provider) -> None:
    page = Client().get("/login/?next=/alerts/").content.decode()

    assert f'href="{START}?next=/alerts/"' in page.replace("%2F", "/")
    assert "<script>" not in page


def test_the_current_groups_decide_the_role(company_sign_in: Provider) -> None:
    came_by(company_sign_in, Client(), "1")

    company_sign_in.tell("1", {"preferred_username": "olga", "groups": ["on-call"]})
    client = Client()
    came_by(company_sign_in, client, "1")

    assert queries.person("olga").role is Role.ADMIN
    assert client.get("/settings/invite/").status_code == 200
    assert logged() == ["olga came in as person olga", "olga became admin person olga"]


def test_a_person_who_lost_all_groups_is_refused_and_signed_out_elsewhere(
    company_sign_in: Provider,
) -> None:
    open_still = Client(REMOTE_ADDR="10.0.0.1")
    came_by(company_sign_in, open_still, "1")
    assert open_still.get("/").status_code == 200

    company_sign_in.tell("1", {"preferred_username": "olga", "groups": ["chess"]})
    answer = came_by(company_sign_in, Client(), "1")

    assert answer.status_code == 403
    assert "none of your groups opens ftdash. Ask for one of these: data, on-call, platform" in (
        answer.content.decode()
    )
    assert open_still.get("/").status_code == 302


def test_a_stranger_without_a_group_gets_no_account(company_sign_in: Provider) -> None:
    company_sign_in.tell("2", {"preferred_username": "sven"})

    assert came_by(company_sign_in, Client(), "2").status_code == 403
    assert not User.objects.filter(username="sven").exists()


def test_a_company_name_does_not_open_a_local_account_of_that_name(
    company_sign_in: Provider,
) -> None:
    admin_user("ada")
    company_sign_in.tell("3", {"preferred_username": "Ada", "groups": ["platform"]})
    client = Client()

    answer = came_by(company_sign_in, client, "3")

    assert "already has an account" in answer.content.decode()
    assert client.get("/").status_code == 302


def test_a_person_is_identified_by_the_subject_and_not_by_the_name(
    company_sign_in: Provider,
) -> None:
    came_by(company_sign_in, Client(), "1")
    company_sign_in.tell("1", {"preferred_username": "olga-married", "groups": ["data"]})
    company_sign_in.tell("4", {"preferred_username": "olga", "groups": ["platform"]})

    assert came_by(company_sign_in, Client(), "1").status_code == 302
    assert came_by(company_sign_in, Client(), "4").status_code == 403
    assert [each.name for each in queries.people()] == ["olga"]


def test_a_deactivated_person_stays_out_until_reactivated(company_sign_in: Provider) -> None:
    came_by(company_sign_in, Client(), "1")
    services.deactivate(name="olga", requester="ada", reason="left")

    assert "has shut out olga" in came_by(company_sign_in, Client(), "1").content.decode()

    services.reactivate(name="olga", requester="ada", reason="back")
    assert came_by(company_sign_in, Client(), "1").status_code == 302


def test_ftdash_does_not_change_roles_and_passwords_of_company_accounts(
    company_sign_in: Provider,
) -> None:
    came_by(company_sign_in, Client(), "1")

    with pytest.raises(Rejected, match="The role of olga is the company's to change"):
        services.change_role(name="olga", role=Role.ADMIN, requester="ada", reason="helps")
    with pytest.raises(Rejected, match="The password of olga is the company's to change"):
        services.reset_password(name="olga", requester="ada", reason="forgot")


def test_the_last_local_admin_stays_even_if_the_company_has_admins(
    company_sign_in: Provider,
) -> None:
    admin_user("ada")
    company_sign_in.tell("1", {"preferred_username": "olga", "groups": ["platform"]})
    came_by(company_sign_in, Client(), "1")

    with pytest.raises(Rejected, match="last admin"):
        services.deactivate(name="ada", requester="olga", reason="all are in the company")


@pytest.mark.parametrize("process", ["connect", "redirect"])
def test_a_link_that_asks_for_more_than_a_sign_in_is_refused(
    company_sign_in: Provider, process: str
) -> None:
    """Otherwise an attacker could make a user connect a stranger's account to their own."""
    ada = admin_user("ada")
    client = signed_in(ada)

    answer = came_by(company_sign_in, client, "1", process=process)

    assert answer.status_code == 403
    assert not services.is_of_company(ada)


def test_an_answer_to_a_sign_in_of_another_browser_is_refused(company_sign_in: Provider) -> None:
    victim, attacker = Client(), Client()
    there = attacker.get(START)["Location"]
    back = company_sign_in.sign_in(there, "1")

    answer = victim.get(back.removeprefix("http://testserver"))

    assert answer.status_code == 403
    assert victim.get("/").status_code == 302


def test_each_sign_in_asks_for_pkce_with_its_own_challenge_and_our_callback(
    company_sign_in: Provider,
) -> None:
    one, other = (parse_qs(urlsplit(Client().get(START)["Location"]).query) for _ in range(2))

    for asked in (one, other):
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"] == [CALLBACK]
        assert "code_verifier" not in asked
    assert one["code_challenge"] != other["code_challenge"]
    assert one["state"] != other["state"]


def test_claims_are_read_but_not_stored(company_sign_in: Provider) -> None:
    company_sign_in.tell(
        "1", {"preferred_username": "olga", "groups": ["data"], "email": "olga@corp.example"}
    )
    for _ in range(2):
        came_by(company_sign_in, Client(), "1")

    (account,) = User.objects.get(username="olga").socialaccount_set.all()
    assert account.extra_data == {}


def test_page_and_doctor_report_a_wrong_secret_in_one_sentence(
    company_sign_in: Provider, settings: Any
) -> None:
    company.probe()
    settings.OIDC_SECRET = "wrong"

    answer = came_by(company_sign_in, Client(), "1")

    assert answer.status_code == 403
    assert "correct FTDASH_OIDC_CLIENT_ID and FTDASH_OIDC_SECRET" in answer.content.decode()
    with pytest.raises(company.Unwell, match="does not accept the client id or the secret"):
        company.probe()


def test_an_unreachable_provider_is_reported_in_one_sentence(
    company_sign_in: Provider, settings: Any
) -> None:
    settings.OIDC_ISSUER = "http://127.0.0.1:9"

    answer = Client().get(START)

    assert answer.status_code == 403
    assert "http://127.0.0.1:9 does not answer" in answer.content.decode()
    with pytest.raises(company.Unwell, match="does not answer; start the provider"):
        company.probe()


def test_an_address_without_a_provider_is_reported_in_one_sentence(
    company_sign_in: Provider, settings: Any
) -> None:
    settings.OIDC_ISSUER = f"{company_sign_in.issuer}/elsewhere"

    assert "describes no OpenID provider" in Client().get(START).content.decode()
    with pytest.raises(company.Unwell, match="describes no OpenID provider"):
        company.probe()


def test_a_wrong_clock_is_reported_in_one_sentence(
    company_sign_in: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_ahead = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: an_hour_ahead)
    too_old = jwt.encode({"iss": "i", "aud": "c", "exp": 1}, key=secrets.token_hex())

    with pytest.raises(OAuth2Error) as refused:
        jwtkit.verify_and_decode(
            credential=too_old,
            keys_url="",
            issuer="i",
            audience="c",
            lookup_kid=None,
            verify_signature=False,
        )

    assert "let a time service" in company.sentence_for(refused.value)
    with pytest.raises(company.Unwell, match=r"clocks .* 3[56]\d\d s apart; let a time service"):
        company.probe()


def test_the_doctor_names_the_trouble_and_its_cure(
    company_sign_in: Provider, settings: Any
) -> None:
    assert doctor.company_sign_in().verdict is doctor.PartState.WELL

    settings.OIDC_SECRET = "wrong"
    found = doctor.company_sign_in()

    assert found.verdict is doctor.PartState.BROKEN
    assert found.cure == "Correct FTDASH_OIDC_CLIENT_ID and FTDASH_OIDC_SECRET."


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("OIDC_CLIENT_ID", "", "FTDASH_OIDC_CLIENT_ID is unset"),
        ("OIDC_SECRET", "", "There is no client secret, or this process may not read it"),
        ("OIDC_ISSUER", "http://sign-in.corp.example", "has to begin with https://"),
        ("ADMIN_GROUPS", frozenset(), "No group opens ftdash"),
    ],
)
def test_unusable_settings_are_reported_in_one_sentence(
    company_sign_in: Provider, settings: Any, name: str, value: object, sentence: str
) -> None:
    settings.OPERATOR_GROUPS = frozenset()
    setattr(settings, name, value)

    assert escape(sentence) in Client().get(START).content.decode()
    with pytest.raises(company.Unwell, match=sentence):
        company.probe()


def test_without_an_issuer_there_is_no_button_and_no_address(site: Path) -> None:
    assert "company" not in Client().get("/login/").content.decode()
    assert Client().get(START).status_code == 404


def test_the_highest_group_decides() -> None:
    roles = [
        role_by_groups(groups, operators=OPERATORS, admins=ADMINS)
        for groups in ({"data", "platform"}, {"data"}, {"chess"}, set())
    ]

    assert roles == [Role.ADMIN, Role.OPERATOR, None, None]


def test_openid_and_proxy_sign_ins_do_not_share_subjects(site: Path, settings: Any) -> None:
    settings.ADMIN_GROUPS = ADMINS
    groups = frozenset({"platform"})
    company.let_in(Identity(Door.OPENID, "olga", "olga", groups))

    with pytest.raises(Rejected, match="already has an account"):
        company.let_in(Identity(Door.PROXY, "olga", "olga", groups))


def came_by(
    provider: Provider, client: Client, subject: str, wanted: str = "/", **options: str
) -> HttpResponse:
    """Signs in through the provider and returns the last answer."""
    start = client.get(START, {"next": wanted, **options})
    back = provider.sign_in(start["Location"], subject)
    return client.get(back.removeprefix("http://testserver"))


def logged() -> list[str]:
    return [str(each) for each in AdminAction.objects.order_by("pk")]
