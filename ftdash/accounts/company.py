"""Lets people in whom the company's own sign-in has identified, with the role of their groups.

Two doors lead here: OpenID Connect (`openid`) and a header of a trusted proxy (`authentication`).
Both hand over an `Identity`. The groups decide the role at every sign-in, so that a change in the
company takes effect here. A person without a group that is configured gets no account.

A local account, one with a password here, is never opened by a company's sign-in of the same name:
otherwise a person who may choose a name there would become that account's person here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError

from ftdash.accounts.services import (
    Role,
    check_person_name,
    end_sessions,
    give_role,
    logged,
    role_of,
)
from pipelines.domain.errors import Rejected


class Door(StrEnum):
    """As `SocialAccount.provider` stores it."""

    OPENID = "company"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Identity:
    """`subject` identifies a person at that door for good; `name` may change there."""

    door: Door
    subject: str
    name: str
    groups: frozenset[str]


def role_by_groups(
    groups: Iterable[str], *, operators: frozenset[str], admins: frozenset[str]
) -> Role | None:
    """The highest role that one of the groups gives, or None. Pure."""
    given = set(groups)
    if given & admins:
        return Role.ADMIN
    return Role.OPERATOR if given & operators else None


def let_in(identity: Identity) -> User:
    """The person's account, made at the first sign-in, with the role of today's groups.

    Raises Rejected with a sentence for the person. If their groups no longer let them in, their
    open sessions end too.
    """
    role = role_by_groups(
        identity.groups, operators=settings.OPERATOR_GROUPS, admins=settings.ADMIN_GROUPS
    )
    known = SocialAccount.objects.filter(provider=identity.door, uid=identity.subject)
    account = known.select_related("user").first()
    if role is None:
        if account is not None:
            end_sessions(account.user)
        raise Rejected(_no_group(identity))
    user = account.user if account else _made(identity, role)
    if not user.is_active:
        raise Rejected(f"An admin of ftdash has shut out {user.get_username()}.")
    if role_of(user) is not role:
        with logged(user.get_username(), f"became {role.value}", user.get_username(), _WHY):
            give_role(user, role)
    return user


_WHY = "the groups of the company"


def _made(identity: Identity, role: Role) -> User:
    check_person_name(identity.name)
    if User.objects.filter(username__iexact=identity.name).exists():
        raise Rejected(
            f"ftdash already has an account {identity.name!r} that does not belong to this sign-in."
            " Sign in with its password, or ask an admin of ftdash."
        )
    try:
        with logged(identity.name, "came in as", identity.name, _WHY, detail=f"as {role.value}"):
            user = User.objects.create_user(identity.name)  # without a password
            SocialAccount.objects.create(user=user, provider=identity.door, uid=identity.subject)
            give_role(user, role)
            return user
    except IntegrityError as error:
        raise Rejected("You have just come in by another window; try again.") from error


def _no_group(identity: Identity) -> str:
    """Names the groups that open ftdash only if there are any: it is no secret to a member of the
    company, and what a person has to ask for."""
    opening = sorted(settings.OPERATOR_GROUPS | settings.ADMIN_GROUPS)
    if not opening:
        return (
            "No group opens ftdash; an admin has to set FTDASH_OPERATOR_GROUPS and"
            " FTDASH_ADMIN_GROUPS."
        )
    return (
        f"You are {identity.name} in the company, but none of your groups opens ftdash. Ask for one"
        f" of these: {', '.join(opening)}."
    )
