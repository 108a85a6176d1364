"""Django's admin: admins read rows, but no user can write them there."""

import re
from typing import Any

import pytest
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.auth.models import User
from django.db import models
from django.test import Client
from django.urls import reverse

from ftdash.accounts.models import ApiToken, OneTimePassword, TokenScope
from ftdash.alerts.models import Channel
from ftdash.jobs.models import Pipeline, Request, Run
from ftdash.ui.admin_site import rows
from tests.web.api_callers import bearer, running
from tests.web.default_rules import make_default_rules

pytestmark = pytest.mark.usefixtures("site")

MODELS = sorted(rows._registry, key=lambda model: model.__name__)
SECRETIVE = re.compile("secret|digest|password|salt|credential|(^|_)key$|token")
READABLE = {"AdminAction": {"digest"}}
"""The digest of an audit log entry is shown for comparison."""

INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=\"|javascript:")


@pytest.fixture(autouse=True)
def _something_in_the_rows(site: Any) -> None:
    make_default_rules()
    running()
    bearer(TokenScope.READ, name="monitor")


@pytest.mark.slow
def test_an_admin_reads_every_row(admin: Client) -> None:
    shown = set()

    for model in MODELS:
        listed = admin.get(address(model, "changelist"))
        assert listed.status_code == 200, model
        for row in model._default_manager.all()[:1]:
            answer = admin.get(address(model, "change", row.pk))
            assert answer.status_code == 200, model
            assert 'name="_save"' not in answer.content.decode()
            shown.add(model)

    assert {Pipeline, Run, Request, ApiToken} <= shown
    assert OneTimePassword not in MODELS


@pytest.mark.slow
def test_neither_admins_nor_operators_can_write_rows(admin: Client, operator: Client) -> None:
    before = {model: list(model._default_manager.values()) for model in MODELS}

    for client, of in ((admin, MODELS), (operator, [Run])):
        for model in of:
            places = [address(model, "add")]
            for row in model._default_manager.all()[:1]:
                places += [address(model, each, row.pk) for each in ("change", "delete")]
            for place in places:
                answer = client.post(place, {"name": "other", "post": "yes"})
                refused = answer.status_code == 403 or answer["Location"].startswith("/admin/login")
                assert refused, place
            chosen = {"action": "delete_selected", "_selected_action": "1", "post": "yes"}
            client.post(address(model, "changelist"), chosen)

    assert {model: list(model._default_manager.values()) for model in MODELS} == before


@pytest.mark.parametrize("place", ["index", "login", "jobs_run_changelist", "password_change"])
def test_an_operator_learns_that_the_rows_need_the_admin_role(operator: Client, place: str) -> None:
    answer = operator.get(reverse(f"admin:{place}"), follow=True)

    assert answer.status_code == 403
    assert "This needs the admin role" in answer.content.decode()


def test_djangos_staff_flag_alone_does_not_open_the_rows() -> None:
    client = Client()
    client.force_login(User.objects.create_user("stan", is_staff=True))

    assert client.get(reverse("admin:index"), follow=True).status_code == 403


@pytest.mark.parametrize("place", ["index", "jobs_run_changelist", "login"])
def test_a_visitor_without_a_session_is_sent_to_our_sign_in_page(place: str) -> None:
    answer = Client().get(reverse(f"admin:{place}"), follow=True)

    (where, _) = answer.redirect_chain[-1]
    assert where.startswith(reverse("login"))
    assert (
        Client()
        .post(reverse("admin:login"), {"username": "a", "password": "b"})["Location"]
        .startswith(reverse("login"))
    )


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example/"])
def test_signing_in_does_not_redirect_to_another_site(admin: Client, elsewhere: str) -> None:
    User.objects.create_user("olga", password="correct horse battery")
    way_in = Client().get(reverse("admin:login"), {"next": elsewhere})["Location"]

    answer = Client().post(way_in, {"username": "olga", "password": "correct horse battery"})

    assert answer["Location"] == "/"


def test_secrets_are_not_shown(admin: Client) -> None:
    token = ApiToken.objects.get()
    channel = Channel.objects.create(
        name="hook",
        kind="WEBHOOK",
        address="https://hooks.example/s3cret",
        key_salt="pepper",
        created_by="ada",
        created_at=token.created_at,
    )

    for row in (token, channel):
        for place in (address(type(row), "changelist"), address(type(row), "change", row.pk)):
            text = admin.get(place).content.decode()
            assert str(row) in text
            for secret in (token.digest, "s3cret", "pepper"):
                assert secret not in text


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_shown_column_named_like_a_secret_needs_a_decision(
    admin: Client, model: type[models.Model]
) -> None:
    """A new column with such a name needs a decision here whether it may be read."""
    request = admin.get(reverse("admin:index")).wsgi_request

    shown = set(flatten_fieldsets(rows._registry[model].get_fieldsets(request)))

    named = {each for each in shown if SECRETIVE.search(each)}
    assert named == READABLE.get(model.__name__, set())


def test_the_row_pages_keep_the_content_security_policy_of_all_pages(admin: Client) -> None:
    run = Run.objects.get()

    for place in (
        reverse("admin:index"),
        address(Run, "changelist"),
        address(Run, "change", run.pk),
        address(Run, "history", run.pk),
    ):
        answer = admin.get(place)

        policy = answer["Content-Security-Policy"]
        assert "script-src 'self';" in f"{policy};"
        assert "unsafe" not in policy
        assert INLINE.findall(answer.content.decode()) == []


def test_the_settings_page_links_to_the_rows_only_for_an_admin(
    admin: Client, operator: Client
) -> None:
    link = f'href="{reverse("admin:index")}"'

    assert link in admin.get(reverse("settings")).content.decode()
    assert link not in operator.get(reverse("settings")).content.decode()


def address(model: type[models.Model], what: str, *arguments: object) -> str:
    meta = model._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_{what}", args=arguments)
