"""Users: invited with a one-time password, given roles, shut out; one admin always remains."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from ftdash.accounts import queries, services
from ftdash.accounts.models import AdminAction
from ftdash.accounts.services import NewPassword, Role
from pipelines.domain.errors import Rejected
from tests.web.people import admin_user, came_in, opens, operator_user, signed_in

pytestmark = pytest.mark.usefixtures("site")

CHOSEN = "correct horse battery"
Change = Callable[[str], object]
AGAINST_THE_LAST_ADMIN: dict[str, Change] = {
    "deactivate": lambda name: services.deactivate(name=name, requester="ada", reason="leaves"),
    "demote": lambda name: services.change_role(
        name=name, role=Role.OPERATOR, requester="ada", reason="moves"
    ),
    "reset": lambda name: services.reset_password(name=name, requester="ada", reason="forgot"),
}
SILENT = {"requester": "ada", "reason": " "}
WITHOUT_A_REASON: dict[str, Callable[[], object]] = {
    "invite": lambda: services.invite(name="olaf", role=Role.OPERATOR, **SILENT),
    "demote": lambda: services.change_role(name="bea", role=Role.OPERATOR, **SILENT),
    "deactivate": lambda: services.deactivate(name="bea", **SILENT),
    "reactivate": lambda: services.reactivate(name="gone", **SILENT),
    "reset": lambda: services.reset_password(name="bea", **SILENT),
    "end a session": lambda: services.end_session(name="bea", key=1, **SILENT),
}


def test_a_one_time_password_opens_only_the_page_to_choose_a_new_one() -> None:
    client = first_time(invited("olaf", Role.ADMIN))

    for address in ("/", "/settings/", "/settings/invite/", "/v1/jobs", "/api/pipelines"):
        answer = client.get(address)

        assert (answer.status_code, answer["Location"]) == (302, reverse("password"))
    assert client.post("/settings/invite/", {"name": "eve"}).status_code == 302
    assert client.get(reverse("password")).status_code == 200
    assert client.post(reverse("logout")).status_code == 302


def test_the_chosen_password_opens_everything_and_the_old_one_nothing() -> None:
    made = invited("olaf")
    client = first_time(made)

    chosen = client.post(reverse("password"), own_password(made))

    assert chosen["Location"] == "/"
    assert client.get("/").status_code == 200
    assert not queries.person("olaf").must_choose_password
    assert not opens("olaf", made.password)
    assert came_in("olaf", CHOSEN).get("/").status_code == 200


def test_a_common_password_is_refused() -> None:
    made = invited("olaf")
    client = first_time(made)
    common = {"new_password1": "password", "new_password2": "password"}

    answer = client.post(reverse("password"), own_password(made) | common)

    assert answer.status_code == 422
    assert "too common" in answer.content.decode()
    assert client.get("/").status_code == 302


def test_changing_a_password_ends_the_other_sessions_of_the_person() -> None:
    made = invited("olaf")
    first, second = first_time(made), first_time(made)

    first.post(reverse("password"), own_password(made))

    assert first.get("/").status_code == 200
    assert second.get("/")["Location"].startswith(reverse("login"))


@pytest.mark.parametrize("name", ["", "with space", "x" * 81, "-a", "a\nb"])
def test_a_name_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="cannot be used"):
        invited(name)


def test_a_taken_name_is_refused_in_any_case() -> None:
    invited("olaf")

    with pytest.raises(Rejected, match="There is or was a person named 'Olaf'"):
        invited("Olaf")


def test_a_role_change_takes_effect_on_the_next_request() -> None:
    admin_user("ada")
    olaf = operator_user("olaf")
    client = signed_in(olaf)
    assert client.get("/settings/invite/").status_code == 403

    services.change_role(name="olaf", role=Role.ADMIN, requester="ada", reason="on call")
    assert client.get("/settings/invite/").status_code == 200

    services.change_role(name="olaf", role=Role.OPERATOR, requester="ada", reason="off call")
    assert client.get("/settings/invite/").status_code == 403


def test_a_change_to_operator_removes_every_other_right_to_act() -> None:
    admin_user("ada")
    group = Group.objects.create(name="acting")
    group.permissions.add(Permission.objects.get(codename="operate"))
    root = User.objects.create_superuser("root")
    root.groups.add(group)

    services.change_role(name="root", role=Role.OPERATOR, requester="ada", reason="tidying")

    assert not User.objects.get(username="root").has_perm("jobs.operate")


def test_deactivation_ends_sessions_and_reactivation_gives_a_new_password() -> None:
    admin_user("ada")
    olaf = operator_user("olaf")
    client = signed_in(olaf)

    services.deactivate(name="olaf", requester="ada", reason="leaves")

    assert client.get("/")["Location"].startswith(reverse("login"))
    made = services.reactivate(name="olaf", requester="ada", reason="is back")
    assert first_time(made).get("/")["Location"] == reverse("password")


@pytest.mark.parametrize("change", AGAINST_THE_LAST_ADMIN)
def test_the_last_admin_cannot_be_demoted_deactivated_or_reset(change: str) -> None:
    admin_user("ada")
    invited("eve", Role.ADMIN)  # has not signed in yet, so does not count as an admin
    gone = admin_user("gone")
    gone.is_active = False
    gone.save()

    with pytest.raises(Rejected, match="ada is the last admin"):
        AGAINST_THE_LAST_ADMIN[change]("ada")

    assert queries.person("ada").role is Role.ADMIN
    assert queries.person("ada").is_active
    assert not AdminAction.objects.filter(subject="person ada").exists()
    admin_user("bea")
    AGAINST_THE_LAST_ADMIN[change]("ada")


@pytest.mark.parametrize("change", AGAINST_THE_LAST_ADMIN)
def test_an_admin_who_is_not_the_last_can_be_changed(change: str) -> None:
    admin_user("ada")
    invited("eve", Role.ADMIN)

    AGAINST_THE_LAST_ADMIN[change]("eve")

    assert AdminAction.objects.filter(who="ada", subject="person eve").count() == 2


def test_a_change_without_effect_is_refused() -> None:
    admin_user("ada")
    operator_user("olaf")

    with pytest.raises(Rejected, match="has the role operator already"):
        services.change_role(name="olaf", role=Role.OPERATOR, requester="ada", reason="x")
    with pytest.raises(Rejected, match="is active already"):
        services.reactivate(name="olaf", requester="ada", reason="x")
    services.deactivate(name="olaf", requester="ada", reason="x")
    with pytest.raises(Rejected, match="is deactivated already"):
        services.deactivate(name="olaf", requester="ada", reason="x")
    with pytest.raises(Rejected, match="no person named 'nobody'"):
        services.deactivate(name="nobody", requester="ada", reason="x")


@pytest.mark.parametrize("change", WITHOUT_A_REASON)
def test_nothing_is_changed_without_a_reason(change: str) -> None:
    admin_user("ada")
    admin_user("bea")
    gone = operator_user("gone")
    gone.is_active = False
    gone.save()
    before = queries.people()

    with pytest.raises(Rejected, match="Say why"):
        WITHOUT_A_REASON[change]()

    assert queries.people() == before
    assert not AdminAction.objects.exists()


def test_every_change_is_logged_with_who_what_and_why() -> None:
    admin_user("ada")
    invited("olaf")
    services.deactivate(name="olaf", requester="ada", reason="leaves")

    left, came = queries.admin_actions()

    assert (left.who, left.what, left.subject) == ("ada", "deactivated", "person olaf")
    assert left.reason == "leaves"
    assert (came.what, came.detail, came.reason) == ("invited", "as operator", "new here")


def invited(name: str, role: Role = Role.OPERATOR) -> NewPassword:
    return services.invite(name=name, role=role, requester="ada", reason="new here")


def first_time(made: NewPassword) -> Client:
    return came_in(made.name, made.password)


def own_password(made: NewPassword) -> dict[str, str]:
    return {
        "old_password": made.password,
        "new_password1": CHOSEN,
        "new_password2": CHOSEN,
    }
