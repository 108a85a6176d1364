"""The only reader of people, tokens and the log, for display; nothing in it grants access."""

from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.utils import timezone

from ftdash.accounts import audit_chain
from ftdash.accounts.models import (
    NO_REQUEST,
    SENT_REQUEST,
    AdminAction,
    ApiToken,
    OneTimePassword,
    SavedView,
    TokenScope,
)
from ftdash.accounts.services import Role, with_role_admin
from ftdash.jobs.models import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    name: str
    scope: TokenScope
    created_by: str
    created_at: datetime
    expires_at: datetime | None  # None: never
    has_expired: bool
    last_used_at: datetime | None  # to the minute; None: never
    revoked_by: str
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonView:
    name: str
    role: Role
    is_active: bool
    must_choose_password: bool  # has not yet replaced the one-time password
    is_of_company: bool  # signs in there, and has the role of the groups there
    invited_at: datetime
    last_signed_in_at: datetime | None  # None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminActionView:
    """`what` and `subject` read as a sentence after `who`: "ada" "invited" "person olaf"."""

    key: int
    at: datetime
    who: str
    what: str
    subject: str
    detail: str
    reason: str
    refusal: str = ""  # empty if it was done


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A browser in which a person is signed in. `address` is the client's at the sign-in."""

    key: int
    person: str
    opened_at: datetime
    address: str
    browser: str  # as it calls itself
    is_this: bool  # the session of this request


def sessions(person: str | None = None, this: str | None = None) -> list[SessionView]:
    """Returns the open sessions of one person or of all, newest first.

    `this` is the key of the session that asks.
    """
    alive = Session.objects.filter(expire_date__gt=timezone.now()).values("session_key")
    rows = UserSession.objects.filter(session_key__in=alive).select_related("user")
    if person is not None:
        rows = rows.filter(user__username=person)
    return [
        SessionView(
            key=row.pk,
            person=row.user.get_username(),
            opened_at=row.created_at,
            address=row.ip,
            browser=row.user_agent,
            is_this=row.session_key == this,
        )
        for row in rows.order_by("-created_at")
    ]


def tokens() -> list[TokenView]:
    """Returns the tokens by name, including revoked ones."""
    now = timezone.now()
    return [
        msgspec.convert(
            {**vars(row), "has_expired": row.expires_at is not None and row.expires_at <= now},
            TokenView,
        )
        for row in ApiToken.objects.all()
    ]


def people() -> list[PersonView]:
    """Returns the people by name, deactivated ones last."""
    admins = set(with_role_admin(is_active=None).values_list("pk", flat=True))
    of_company = set(SocialAccount.objects.values_list("user_id", flat=True))
    waiting = set(OneTimePassword.objects.values_list("user_id", flat=True))
    return [
        PersonView(
            name=user.get_username(),
            role=Role.ADMIN if user.pk in admins else Role.OPERATOR,
            is_active=user.is_active,
            must_choose_password=user.pk in waiting,
            is_of_company=user.pk in of_company,
            invited_at=user.date_joined,
            last_signed_in_at=user.last_login,
        )
        for user in User.objects.order_by("-is_active", "username")
    ]


def person(name: str) -> PersonView | None:
    return next((each for each in people() if each.name == name), None)


def token(name: str) -> TokenView | None:
    return next((each for each in tokens() if each.name == name), None)


def verify_log(noted: str = "") -> audit_chain.Verified:
    """Verifies the whole log, a part at a time. `noted` is a digest from an earlier call."""
    unlogged = _unlogged()
    found = audit_chain.verify(AdminAction.objects.order_by("pk").iterator(), noted)
    return replace(found, unlogged=unlogged)


def _unlogged() -> tuple[str, ...]:
    """Returns the ids of requests without an entry.

    Versions that logged no requests stored those from before the first such entry.
    """
    entries = AdminAction.objects.filter(what=SENT_REQUEST).order_by("pk")
    first = entries.first()
    if first is None:
        return ()
    # Reads requests before entries: one that is stored meanwhile then has its entry.
    later = Request.objects.filter(created_at__gt=first.at).order_by("pk")
    requests = list(later.values_list("request_id", flat=True))
    details = entries.values_list("detail", flat=True).iterator()
    logged = {detail.partition(":")[0] for detail in details}
    return tuple(each for each in requests if each not in logged)


def admin_actions(limit: int = 50) -> list[AdminActionView]:
    """Changes other than to pipelines, newest first."""
    rows = AdminAction.objects.filter(NO_REQUEST).order_by("-at", "-pk")
    return [msgspec.convert({**vars(row), "key": row.pk}, AdminActionView) for row in rows[:limit]]


@dataclass(frozen=True, slots=True)
class ViewOfFleet:
    """A person's saved view of the page of all pipelines."""

    key: int
    name: str
    query: str
    is_default: bool


def saved_views(person: str) -> list[ViewOfFleet]:
    """Returns the person's saved views by name."""
    rows = SavedView.objects.filter(user__username=person)
    return [ViewOfFleet(row.pk, row.name, row.query, row.is_default) for row in rows]
