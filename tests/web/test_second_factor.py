"""A second factor for local accounts: required at sign-in; an admin can demand or reset it."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import (
    format_hotp_value,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db.models import F
from django.test import Client

from ftdash.accounts import queries, second_factor, services
from ftdash.accounts.company import Door, Identity, let_in
from ftdash.accounts.models import AdminAction, CacheEntry
from pipelines.domain.errors import Rejected
from tests.web.people import admin_user

pytestmark = pytest.mark.usefixtures("site")

PASSWORD = "correct horse battery"
ADD_APP, ASK, CODES = "/second-factor/app/", "/second-factor/ask/", "/second-factor/codes/"
SECRET = re.compile(r'id="authenticator-secret">([A-Z2-7]+)<')


@pytest.fixture
def ada() -> User:
    user = admin_user("ada")
    user.set_password(PASSWORD)
    user.save()
    return user


@pytest.fixture
def olaf() -> User:
    return User.objects.create_user("olaf", password=PASSWORD)


def test_sign_in_needs_the_code_of_the_app_after_the_password(olaf: User) -> None:
    secret = app_of(by_password("olaf"))
    cache.clear()  # forget the code that was just used

    client = by_password("olaf")

    assert client.get("/")["Location"].startswith("/login/")
    wrong = client.post(ASK, {"code": "000000"})
    assert "Incorrect code." in wrong.content.decode()
    assert client.get("/")["Location"].startswith("/login/")
    assert client.post(ASK, {"code": code_of(secret)})["Location"] == "/alerts/"
    assert client.get("/").status_code == 200


def test_a_code_signs_in_only_once(olaf: User) -> None:
    secret = app_of(by_password("olaf"))
    cache.clear()
    code = code_of(secret)
    by_password("olaf").post(ASK, {"code": code})

    again = by_password("olaf")
    again.post(ASK, {"code": code})

    assert again.get("/").status_code == 302


def test_a_used_code_is_refused_as_long_as_it_is_valid(olaf: User) -> None:
    """The clock of a telephone may be off, so a code is valid for longer than its own step."""
    secret = app_of(by_password("olaf"))
    cache.clear()
    code = code_of(secret)
    by_password("olaf").post(ASK, {"code": code})
    step = timedelta(seconds=31)
    CacheEntry.objects.update(expires_at=F("expires_at") - step)

    again = by_password("olaf")
    again.post(ASK, {"code": f"{code[:3]} {code[3:]}"})

    assert again.get("/").status_code == 302


def test_a_recovery_code_signs_in_only_once(olaf: User) -> None:
    client = by_password("olaf")
    app_of(client)
    page = client.get(CODES).content.decode()
    (codes,) = re.findall(r'aria-label="Your recovery codes">([^<]+)<', page)
    first = codes.split()[0]

    once, twice = by_password("olaf"), by_password("olaf")
    once.post(ASK, {"code": first})
    twice.post(ASK, {"code": first})

    assert len(codes.split()) == 10
    assert once.get("/").status_code == 200
    assert twice.get("/").status_code == 302


def test_the_number_of_wrong_codes_is_limited(olaf: User) -> None:
    secret = app_of(by_password("olaf"))
    cache.clear()
    client = by_password("olaf")
    for number in range(6):
        client.post(ASK, {"code": f"00000{number}"})

    answer = client.post(ASK, {"code": code_of(secret)})

    assert "Too many failed login attempts" in answer.content.decode()
    assert client.get("/").status_code == 302


def test_adding_a_second_factor_needs_the_password_again(olaf: User) -> None:
    client = by_password("olaf")

    asked = client.get(ADD_APP)

    assert asked["Location"] == f"/password/again/?next={ADD_APP.replace('/', '%2F')}"
    client.post(asked["Location"], {"password": "wrong", "next": ADD_APP})
    assert client.get(ADD_APP).status_code == 302


def test_adding_and_removing_a_second_factor_is_logged(
    olaf: User, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    client = by_password("olaf")
    with django_capture_on_commit_callbacks(execute=True):
        app_of(client)
    client.post("/second-factor/app/remove/")

    assert logged() == [
        "olaf added a second factor of person olaf",
        "olaf removed a second factor of person olaf",
    ]
    assert by_password("olaf").get("/").status_code == 200


def test_a_required_second_factor_applies_to_everyone_with_a_password(
    ada: User, olaf: User
) -> None:
    admin, open_still = by_password("ada"), by_password("olaf")
    app_of(admin)

    done = admin.post("/settings/require-factor/", {"reason": "the auditors"})

    assert done["Location"] == "/settings/"
    assert open_still.get("/").status_code == 302, "a session without one has ended"
    client = by_password("olaf")
    for address in ("/", "/settings/", "/api/pipelines", "/second-factor/codes/new/"):
        assert client.get(address)["Location"] == "/second-factor/"
    assert "An admin requires a second factor" in client.get("/second-factor/").content.decode()
    app_of(client)
    assert client.get("/").status_code == 200
    assert admin.get("/").status_code == 200


def test_an_admin_without_a_second_factor_cannot_require_one_of_others(ada: User) -> None:
    with pytest.raises(Rejected, match="Add a second factor to your own account first"):
        second_factor.require(requester="ada", reason="the auditors")


def test_an_admin_resets_the_second_factor_of_a_person_who_lost_it(ada: User, olaf: User) -> None:
    lost = by_password("olaf")
    app_of(lost)

    answer = by_password("ada").post(
        "/settings/reset-factor/?of=olaf", {"reason": "lost telephone", "confirmation": "olaf"}
    )

    assert answer["Location"] == "/settings/"
    assert lost.get("/").status_code == 302
    assert by_password("olaf").get("/").status_code == 200
    assert not Authenticator.objects.exists()
    assert logged()[-1] == "ada reset the second factor of person olaf"


def test_people_signed_in_by_the_company_need_no_second_factor_here(
    ada: User, settings: Any
) -> None:
    settings.OPERATOR_GROUPS = frozenset({"data"})
    app_of(by_password("ada"))
    second_factor.require(requester="ada", reason="the auditors")
    client = Client()

    client.force_login(let_in(Identity(Door.OPENID, "1", "olga", frozenset({"data"}))))

    assert client.get("/").status_code == 200
    assert client.get(ADD_APP).status_code == 403


def test_a_person_sees_and_can_end_their_own_open_sessions(olaf: User) -> None:
    here, there = by_password("olaf"), by_password("olaf", REMOTE_ADDR="203.0.113.5")
    page = here.get("/settings/").content.decode()
    assert "203.0.113.5" in page

    (other,) = [each for each in queries.sessions("olaf") if each.address == "203.0.113.5"]
    assert here.post(f"/sessions/{other.key}/end/")["Location"] == "/settings/"

    assert there.get("/").status_code == 302
    assert here.get("/").status_code == 200
    assert [each.address for each in queries.sessions("olaf")] == ["127.0.0.1"]


def test_only_an_admin_can_see_or_end_the_sessions_of_others(ada: User, olaf: User) -> None:
    admin, operator = by_password("ada", REMOTE_ADDR="203.0.113.5"), by_password("olaf")
    (of_ada,) = queries.sessions("ada")
    (of_olaf,) = queries.sessions("olaf")

    assert "203.0.113.5" not in operator.get("/settings/").content.decode()
    operator.post(f"/sessions/{of_ada.key}/end/")
    assert operator.post(
        f"/settings/end-session/?of={of_ada.key}", {"reason": "x"}
    ).status_code == (403)
    assert admin.get("/").status_code == 200

    admin.post(f"/settings/end-session/?of={of_olaf.key}", {"reason": "a lost notebook"})
    assert operator.get("/").status_code == 302
    assert logged() == ["ada ended a session of person olaf"]


def test_deactivating_a_person_ends_their_sessions(ada: User, olaf: User) -> None:
    by_password("olaf")

    services.deactivate(name="olaf", requester="ada", reason="left")

    assert queries.sessions("olaf") == []


def test_after_a_password_change_only_the_session_that_made_it_is_listed(olaf: User) -> None:
    by_password("olaf", REMOTE_ADDR="203.0.113.5")
    here = by_password("olaf")
    new = {"new_password1": "another horse battery", "new_password2": "another horse battery"}

    here.post("/password/", {"old_password": PASSWORD, **new})

    assert [each.address for each in queries.sessions("olaf")] == ["127.0.0.1"]


def by_password(name: str, **options: Any) -> Client:
    client = Client(**options)
    client.post("/login/", {"username": name, "password": PASSWORD, "next": "/alerts/"})
    return client


def app_of(client: Client) -> str:
    """Adds an authenticator app to the account of this session, and returns its secret."""
    client.post("/password/again/", {"password": PASSWORD, "next": ADD_APP})
    (secret,) = SECRET.findall(client.get(ADD_APP).content.decode())
    added = client.post(ADD_APP, {"code": code_of(secret)})
    assert added["Location"] == CODES
    return str(secret)


def code_of(secret: str) -> str:
    """Returns the code of an app whose clock is a step ahead: it stays valid for the whole test."""
    *_, counter = yield_hotp_counters_from_time()
    return str(format_hotp_value(hotp_value(secret, counter)))


def logged() -> list[str]:
    return [str(each) for each in AdminAction.objects.order_by("pk")]
