"""Sign-in: tries are counted, cookies are strict, and no answer redirects to other sites."""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import settings as project
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.web.people import opens, operator_user, signed_in

ELSEWHERE = ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)"]
PASSWORD = "correct horse battery"
CHECK_AND_PRINT = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "ftdash.settings"
django.setup()
from django.conf import settings as s
from django.core.management import call_command
call_command("check", deploy=True, fail_level="WARNING")
print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE,
      s.SECURE_SSL_REDIRECT, s.SECURE_HSTS_SECONDS)
"""


@pytest.fixture
def olaf(site: Path) -> User:
    return User.objects.create_user("olaf", password=PASSWORD)


def test_too_many_failures_lock_an_address_out_for_every_name(olaf: User) -> None:
    for number in range(project.AXES_FAILURE_LIMIT - 1):
        assert tried(f"name {number}").status_code == 200

    locked = tried("olaf")

    assert locked.status_code == 429
    assert "Too many tries" in locked.content.decode()
    assert tried("olaf", PASSWORD).status_code == 429
    assert tried("olaf", PASSWORD, REMOTE_ADDR="10.1.2.3").status_code == 302


def test_a_locked_out_address_may_try_again_after_a_while(olaf: User) -> None:
    for _ in range(project.AXES_FAILURE_LIMIT):
        tried("olaf")
    assert not opens("olaf", PASSWORD)

    past = timezone.now() - project.AXES_COOLOFF_TIME - timedelta(seconds=1)
    AccessAttempt.objects.update(attempt_time=past)

    assert opens("olaf", PASSWORD)


def test_an_open_session_continues_while_its_address_is_locked_out(olaf: User) -> None:
    client = signed_in(olaf)
    for _ in range(project.AXES_FAILURE_LIMIT):
        tried("olaf")

    assert client.get("/").status_code == 200


def test_a_session_ends_twelve_hours_after_the_sign_in(
    olaf: User, no_time_passes: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time counts from the sign-in, whatever the user has done since."""
    client = signed_in(olaf)
    at = {hours: no_time_passes + timedelta(hours=hours) for hours in (11.99, 12.01)}

    monkeypatch.setattr(timezone, "now", lambda: at[11.99])
    assert client.get("/").status_code == 200
    monkeypatch.setattr(timezone, "now", lambda: at[12.01])
    assert client.get("/")["Location"] == "/login/?next=/"


def test_a_tried_password_is_not_stored(olaf: User) -> None:
    tried("olaf", "hunter2-hunter2")

    assert "hunter2" not in str(AccessAttempt.objects.values())


@pytest.mark.parametrize("address", ELSEWHERE)
def test_signing_in_ignores_a_next_address_of_another_site(olaf: User, address: str) -> None:
    given = {"username": "olaf", "password": PASSWORD, "next": address}

    after = Client().post(reverse("login"), given)
    already = signed_in(operator_user("eve")).get(reverse("login"), {"next": address})

    assert (after.status_code, after["Location"]) == (302, "/")
    assert (already.status_code, already["Location"]) == (302, "/")


def test_signing_in_returns_to_the_requested_page(olaf: User) -> None:
    wanted = Client().get("/alerts/")["Location"]

    assert wanted == "/login/?next=/alerts/"
    given = {"username": "olaf", "password": PASSWORD, "next": "/alerts/"}
    assert Client().post(reverse("login"), given)["Location"] == "/alerts/"


def test_signing_out_needs_a_form_with_the_csrf_token(olaf: User) -> None:
    client = signed_in(olaf, enforce_csrf_checks=True)

    assert client.get(reverse("logout")).status_code == 405
    assert client.post(reverse("logout")).status_code == 403
    assert client.get("/").status_code == 200


def test_cookies_are_hidden_from_scripts_and_not_sent_by_other_sites(olaf: User) -> None:
    client = Client()
    client.get(reverse("login"))

    client.post(reverse("login"), {"username": "olaf", "password": PASSWORD})

    for name in (project.SESSION_COOKIE_NAME, project.CSRF_COOKIE_NAME):
        assert client.cookies[name]["httponly"]
        assert client.cookies[name]["samesite"] == "Lax"


def test_responses_forbid_frames_sniffing_and_foreign_referrers(olaf: User) -> None:
    answer = signed_in(olaf).get("/")

    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"
    assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]


def test_the_settings_pass_the_checks_for_deployment(settings: Any) -> None:
    call_command("check", deploy=True, fail_level="WARNING")

    settings.SECURE_CONTENT_TYPE_NOSNIFF = False
    with pytest.raises(SystemCheckError, match=r"security\.W006"):
        call_command("check", deploy=True, fail_level="WARNING")


@pytest.mark.slow
def test_behind_tls_the_checks_pass_and_cookies_are_bound_to_the_host(tmp_path: Path) -> None:
    environment = {**os.environ, "FTDASH_TLS": "1", "FTDASH_HOME": str(tmp_path)}

    checked = subprocess.run(
        [sys.executable, "-c", CHECK_AND_PRINT],
        cwd=project.BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines()[-1] == (
        "__Host-sessionid __Host-csrftoken True True True 31536000"
    )


def tried(name: str, password: str = "wrong", **options: Any) -> HttpResponse:
    return Client().post(reverse("login"), {"username": name, "password": password}, **options)
