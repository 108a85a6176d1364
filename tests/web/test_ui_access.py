"""Access to every address: signed out, as operator, and without a CSRF token."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, get_resolver, reverse

from ftdash.accounts.models import AdminAction
from ftdash.checkpoints.models import Audit
from ftdash.gameday.models import GameDay
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import PointComparison, PointInspection, Request
from ftdash.lab.models import Lab
from ftdash.projection.projector import Projector
from ftdash.ui.actions.page import ACTIONS
from ftdash.ui.settings import page as settings_page
from pipelines.domain.status import CheckpointKind
from tests.web.addresses import all_patterns
from tests.web.journals import Story, new_run
from tests.web.people import admin_user, signed_in

pytestmark = pytest.mark.usefixtures("site")

OPEN_ADDRESSES = {  # the addresses for signing in
    *("login", "account_login", "openid_connect_login", "openid_connect_callback"),
}
PAGES = {
    "fleet",
    "fleet-regions",
    "pipeline",
    "pipeline-regions",
    "pipeline-metrics",
    "pipeline-metrics-regions",
    "recovery",
    "recovery-regions",
    "pipeline-planner",
    "pipeline-planner-regions",
    "guarantee",
    "guarantee-regions",
    "checkpoints",
    "checkpoints-regions",
    "checkpoint",
    "checkpoint-regions",
    "lineage",
    "lineage-regions",
    "game-days",
    "game-days-regions",
    "pipeline-game-days",
    "pipeline-game-days-regions",
    "event-log",
    "event-log-regions",
    "savepoints",
    "savepoints-regions",
    "savepoint",
    "savepoint-regions",
    "savepoint-manifest",
    "savepoint-holds",
    "compare-savepoints",
    "savepoint-state",
}
OWN_BUSINESS = (  # actions of the signed-in user on their own account
    *("logout", "password", "end-own-session", "mfa_authenticate", "mfa_activate_totp"),
    *("mfa_deactivate_totp", "mfa_add_webauthn", "mfa_remove_webauthn"),
    *("mfa_generate_recovery_codes", "save-view", "change-view"),
)
ARGUMENTS = {
    "name": "flights",
    "action": "savepoint",
    "checkpoint_id": 1,
    "jid": "0" * 32,
    "key": 1,
    "pk": 1,
    "savepoint_key": "flights-1-2",
    "path": "index.html",
    "request_id": "of-an-upgrade",
}


def address_of(pattern: URLPattern) -> str:
    wanted = pattern.pattern.converters
    return reverse(str(pattern.name), kwargs={name: ARGUMENTS[name] for name in wanted})


PATTERNS = [
    pattern
    for pattern in all_patterns(get_resolver().url_patterns)
    if pattern.name not in OPEN_ADDRESSES
]


def test_no_address_answers_without_a_sign_in() -> None:
    running_pipeline()

    for pattern in PATTERNS:
        for method in ("get", "post"):
            answer = getattr(Client(), method)(address_of(pattern))

            assert answer.status_code == 302, (pattern.name, method)
            assert answer["Location"].startswith(reverse("login")), (pattern.name, method)
    nothing_was_done()


def test_an_operator_sees_every_page(operator: Client) -> None:
    running_pipeline()
    patterns = [each for each in PATTERNS if each.name in PAGES]

    assert sorted(str(each.name) for each in patterns) == sorted(PAGES)
    for pattern in patterns:
        answer = operator.get(address_of(pattern))

        assert answer.status_code == 200, pattern.name
        assert "flights" in answer.content.decode(), pattern.name


def test_an_operator_sees_no_button(operator: Client) -> None:
    running_pipeline()

    page = operator.get(reverse("pipeline", args=["flights"])).content.decode()

    assert "Acting on it needs the admin role" in page
    assert "data-dialog" not in page
    assert "/flights/savepoint/" not in page


def test_an_operator_may_not_act(operator: Client) -> None:
    running_pipeline()

    for action in ACTIONS:
        address = reverse("act", args=["flights", action])
        for send in (operator.get, operator.post):
            answer = send(address, {"reason": "why"})

            assert answer.status_code == 403, action
            assert "This needs the admin role" in answer.content.decode(), action
    nothing_was_done()


def test_no_post_of_an_operator_acts_on_anything(operator: Client) -> None:
    running_pipeline()

    for pattern in PATTERNS:
        answer = operator.post(address_of(pattern), {"reason": "why", "from": "flights-1-2"})

        refused = (403, 405)  # the latter where no user can post
        assert (pattern.name in OWN_BUSINESS) != (answer.status_code in refused), pattern.name
        if pattern.name == "logout":
            operator.force_login(User.objects.get(username="olaf"))
    nothing_was_done()


def test_no_post_without_the_csrf_token_does_anything() -> None:
    running_pipeline()
    client = signed_in(admin_user(), enforce_csrf_checks=True)

    for pattern in PATTERNS:
        answer = client.post(address_of(pattern), {"reason": "why", "from": "flights-1-2"})

        assert answer.status_code == 403, pattern.name
    nothing_was_done()


def test_an_operator_may_not_start_a_pipeline(operator: Client) -> None:
    assert operator.get(reverse("submit")).status_code == 403
    assert operator.post(reverse("submit"), {}).status_code == 403


def test_an_operator_may_not_change_settings(operator: Client) -> None:
    for action in settings_page.ACTIONS:
        for send in (operator.get, operator.post):
            answer = send(settings_address(action), {"reason": "why"})

            assert answer.status_code == 403, action
    nothing_was_done()


def test_a_settings_change_without_the_csrf_token_is_refused() -> None:
    client = signed_in(admin_user(), enforce_csrf_checks=True)

    for action in settings_page.ACTIONS:
        answer = client.post(settings_address(action), {"reason": "why", "confirmation": "olaf"})

        assert answer.status_code == 403, action
    nothing_was_done()


def test_an_action_without_the_csrf_token_is_refused() -> None:
    running_pipeline()
    client = signed_in(admin_user(), enforce_csrf_checks=True)

    for action in ACTIONS:
        answer = client.post(reverse("act", args=["flights", action]), {"reason": "why"})

        assert answer.status_code == 403, action
    nothing_was_done()


@pytest.mark.parametrize(
    "address", ["/pipelines/nothing/", "/pipelines/nothing/regions/", "/pipelines/flights/dance/"]
)
def test_unknown_names_are_not_found(admin: Client, address: str) -> None:
    running_pipeline()

    answer = admin.get(address)

    assert answer.status_code == 404
    assert "There is nothing here" in answer.content.decode()


def test_only_the_page_with_charts_allows_inline_styles(admin: Client) -> None:
    running_pipeline()

    fleet, pipeline = admin.get("/"), admin.get(reverse("pipeline", args=["flights"]))

    assert "unsafe-inline" not in fleet["Content-Security-Policy"]
    policy = dict(part.split(" ", 1) for part in pipeline["Content-Security-Policy"].split("; "))
    assert policy["style-src"] == "'self' 'unsafe-inline'"
    assert "unsafe" not in policy["script-src"]
    assert "no-store" in pipeline["Cache-Control"]


def nothing_was_done() -> None:
    for each in (Request, Audit, PointComparison, PointInspection, GameDay, Lab, AdminAction):
        assert not each.objects.exists()


def settings_address(action: str) -> str:
    return reverse("settings-action", args=[action]) + "?of=olaf"


def running_pipeline() -> None:
    """Makes a run with a checkpoint, and a savepoint whose manifest exists."""
    run = new_run()
    path = run_directory(run).path / "savepoint"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text('{"run": "flights-1"}')
    story = Story(run).started().sampled().completed()
    story.completed(CheckpointKind.SAVEPOINT, path=str(path))
    Projector().run_once()
