"""What an admin may change about people and tokens."""

from datetime import timedelta

from django.http import Http404
from django.utils import timezone

from ftdash.accounts import people, queries, services
from ftdash.accounts.models import TokenScope
from ftdash.accounts.people import NewPassword, Role
from ftdash.formats import utc
from ftdash.ui.settings.forms import (
    ConfirmedSettingsForm,
    Done,
    InviteForm,
    RoleForm,
    SettingsAction,
    SettingsForm,
    TokenForm,
    Values,
)


def invite(_: str, values: Values, who: str) -> Done:
    role = Role(values["role"])
    made = people.invite(name=values["name"], role=role, requester=who, reason=values["reason"])
    return _password(made)


def change_role(of: str, values: Values, who: str) -> Done:
    role = Role(values["role"])
    people.change_role(name=of, role=role, requester=who, reason=values["reason"])
    return Done(f"{of} has the role {role.value} now.")


def deactivate(of: str, values: Values, who: str) -> Done:
    people.deactivate(name=of, requester=who, reason=values["reason"])
    return Done(f"{of} is shut out.")


def reactivate(of: str, values: Values, who: str) -> Done:
    return _password(people.reactivate(name=of, requester=who, reason=values["reason"]))


def reset_password(of: str, values: Values, who: str) -> Done:
    return _password(people.reset_password(name=of, requester=who, reason=values["reason"]))


def make_token(_: str, values: Values, who: str) -> Done:
    days = values["days"]
    token = services.create_token(
        name=values["name"],
        scope=TokenScope(values["scope"]),
        created_by=who,
        reason=values["reason"],
        expires_at=None if days is None else timezone.now() + timedelta(days=days),
    )
    return Done(f"The token {token.name}, for the header 'Authorization: Bearer'", token.secret)


def revoke_token(of: str, values: Values, who: str) -> Done:
    services.revoke_token(name=of, revoked_by=who, reason=values["reason"])
    return Done(f"The token {of} opens nothing any more.")


def _password(made: NewPassword) -> Done:
    return Done(f"The password of {made.name}, to be changed at the first sign-in", made.password)


def _of_person(of: str) -> queries.PersonView:
    found = queries.person(of)
    if found is None:
        raise Http404(f"There is nobody named {of!r}.")
    return found


def _before_role(of: str) -> str:
    return f"{of} has the role {_of_person(of).role.value} now. It changes at their next click."


def _before_deactivating(of: str) -> str:
    role = _of_person(of).role.value
    return (
        f"{of} ({role}) is signed out everywhere and cannot sign in. What they asked for goes on,"
        " and stays in the log; tokens that they made keep working."
    )


def _before_reactivating(of: str) -> str:
    return f"{of} gets a new one-time password, and the role {_of_person(of).role.value} as before."


def _before_reset(of: str) -> str:
    return f"{_of_person(of).name} is signed out everywhere and gets a one-time password."


def _before_revoking(of: str) -> str:
    found = queries.token(of)
    if found is None:
        raise Http404(f"There is no token {of!r}.")
    used = f"last used {utc(found.last_used_at)}" if found.last_used_at else "never used"
    return f"Whoever uses {of} is refused from now on; it was {used}. Its name stays taken."


ACTIONS = {
    "invite": SettingsAction(
        "Invite somebody",
        "Invite",
        InviteForm,
        lambda _: "You get a random password to hand over; it has to be changed at first use.",
        invite,
        shows_secret=True,
    ),
    "role": SettingsAction("Change the role", "Change role", RoleForm, _before_role, change_role),
    "reset-password": SettingsAction(
        "Give a new one-time password",
        "Give a new password",
        SettingsForm,
        _before_reset,
        reset_password,
        shows_secret=True,
    ),
    "deactivate": SettingsAction(
        "Deactivate a person",
        "Deactivate",
        ConfirmedSettingsForm,
        _before_deactivating,
        deactivate,
    ),
    "reactivate": SettingsAction(
        "Let a person in again",
        "Reactivate",
        SettingsForm,
        _before_reactivating,
        reactivate,
        shows_secret=True,
    ),
    "make-token": SettingsAction(
        "Make an API token",
        "Make token",
        TokenForm,
        lambda _: "The secret is shown once, and kept as a digest only.",
        make_token,
        shows_secret=True,
    ),
    "revoke-token": SettingsAction(
        "Revoke an API token",
        "Revoke",
        ConfirmedSettingsForm,
        _before_revoking,
        revoke_token,
    ),
}
