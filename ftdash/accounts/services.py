"""The only writers of people, API tokens, saved views, and the audit log.

A role is the permission `jobs.operate` or its absence. There is always an admin who can sign in
with a password of their own; this module refuses changes that would end that. The secrets of tokens
are random and shown once. A revoked token's row and name stay, so that its name in the log never
means another token.

A form whose answer contains a secret counts once: sent again, by a reload or a second click, it
would make another secret and void the one just handed over. Each form carries a signed mark. Used
marks are rows, so if two copies arrive at the same moment, only one counts.
"""

import hashlib
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import Permission, User
from django.core.signing import BadSignature, TimestampSigner
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ftdash.accounts.audit_chain import BEGINNING, digest_after
from ftdash.accounts.models import (
    SENT_REQUEST,
    AdminAction,
    ApiToken,
    OneTimePassword,
    SavedView,
    SentForm,
    TokenScope,
)
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected


def record(*, who: str, what: str, subject: str, reason: str, detail: str = "") -> None:
    """Call it in the transaction of the change, so that neither exists without the other."""
    _append(AdminAction(who=who, what=what, subject=subject, detail=detail, reason=reason))


def record_refusal(
    *, who: str, what: str, subject: str, reason: str, refusal: str, detail: str = ""
) -> None:
    """`what` begins with "tried to". The subject is a person's own text; a long one is cut."""
    kept = subject[: AdminAction.SUBJECT_LENGTH_MAX]
    given = {"who": who, "what": what, "subject": kept, "detail": detail, "reason": reason}
    _append(AdminAction(**given, refusal=refusal))


def record_request(*, who: str, pipeline: str, request_id: str, command: str, reason: str) -> None:
    """Call it in the transaction that stores the request."""
    subject, detail = f"pipeline {pipeline}", f"{request_id}: {command}"
    record(who=who, what=SENT_REQUEST, subject=subject, reason=reason, detail=detail)


def _append(entry: AdminAction) -> None:
    """One writer at a time: two entries must not follow the same one."""
    with one_at_a_time():
        newest = AdminAction.objects.order_by("-pk").values_list("digest", flat=True).first()
        entry.at = timezone.now()
        entry.previous = newest or BEGINNING
        entry.digest = digest_after(entry.previous, entry)
        entry.save(force_insert=True)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """A transaction that waits for others of its kind to end."""
    with transaction.atomic():
        Permission.objects.select_for_update().get(
            content_type__app_label="jobs", codename="operate"
        )
        yield


PREFIX = "ftd_"
"""Shows a reader of a leaked file, or a scanner for secrets, that this is a token of ftdash."""

SECRET_BYTES = 32
_TOKEN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


@dataclass(frozen=True, slots=True)
class NewToken:
    """`secret` is available only here: the database stores only its digest."""

    name: str
    scope: TokenScope
    secret: str


def create_token(
    *,
    name: str,
    scope: TokenScope,
    created_by: str,
    reason: str,
    expires_at: datetime | None = None,
) -> NewToken:
    """Raises Rejected if the name cannot be used or is taken, or the expiry is in the past."""
    reason = check_reason(reason)
    if not _TOKEN_NAME.fullmatch(name):
        raise Rejected(
            f"The token name {name!r} cannot be used; take up to 80 lower-case letters, digits,"
            " '-' and '_', and begin with a letter or digit."
        )
    if ApiToken.objects.filter(name=name).exists():
        raise Rejected(_taken(name))
    now = timezone.now()
    if expires_at is not None and expires_at <= now:
        raise Rejected("A token has to expire later than now.")
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    try:
        with transaction.atomic():
            ApiToken.objects.create(
                name=name,
                digest=digest_of(secret),
                scope=scope,
                created_by=created_by,
                created_at=now,
                expires_at=expires_at,
            )
            _log(created_by, "made", name, reason, detail=_powers(scope, expires_at))
    except IntegrityError as error:
        raise Rejected(_taken(name)) from error
    return NewToken(name, scope, secret)


def revoke_token(*, name: str, revoked_by: str, reason: str) -> None:
    """Makes the token invalid from now on. Raises Rejected if no such token is in use."""
    reason = check_reason(reason)
    in_use = ApiToken.objects.filter(revoked_at=None)
    with transaction.atomic():
        revoked = in_use.filter(name=name)
        if revoked.update(revoked_by=revoked_by, revoked_at=timezone.now()):
            _log(revoked_by, "revoked", name, reason)
            return
    known = ", ".join(in_use.values_list("name", flat=True)) or "none"
    raise Rejected(f"There is no token {name!r} to revoke; in use: {known}.")


def digest_of(secret: str) -> str:
    """256 random bits need no slow hash: a digest does not help to guess them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _taken(name: str) -> str:
    return f"There is, or was, a token {name!r}; choose another name."


def _powers(scope: TokenScope, expires_at: datetime | None) -> str:
    until = f"until {expires_at:%Y-%m-%d %H:%M:%S} UTC" if expires_at else "without an end"
    return f"to {scope.label}, {until}"


def _log(who: str, what: str, name: str, reason: str, detail: str = "") -> None:
    record(who=who, what=what, subject=f"token {name}", reason=reason, detail=detail)


PASSWORD_BYTES = 15
MODEL_BACKEND = "django.contrib.auth.backends.ModelBackend"
_PERSON_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@.+_-]{0,79}")


class Role(StrEnum):
    OPERATOR = "operator"  # sees everything
    ADMIN = "admin"  # sees everything and acts


@dataclass(frozen=True, slots=True)
class NewPassword:
    """`password` is shown only here and now, and its person must change it at first use.

    It is empty for a company account, which has no password here.
    """

    name: str
    password: str


def with_role_admin(*, is_active: bool | None = True) -> QuerySet[User]:
    """Selects the admins. `is_active` None includes deactivated ones."""
    return User.objects.with_perm(
        "jobs.operate",
        is_active=is_active,  # type: ignore[arg-type]  # None is documented
        backend=MODEL_BACKEND,
    )


def invite(*, name: str, role: Role, requester: str, reason: str) -> NewPassword:
    """Raises Rejected if the name cannot be used or is taken, ignoring case."""
    reason = check_reason(reason)
    check_person_name(name)
    if User.objects.filter(username__iexact=name).exists():
        raise Rejected(f"There is or was a person named {name!r}; choose another name.")
    try:
        with logged(requester, "invited", name, reason, detail=f"as {role.value}"):
            user = User.objects.create_user(name)
            give_role(user, role)
            return _give_one_time_password(user)
    except IntegrityError as error:
        raise Rejected(f"Another admin has just invited a person named {name!r}.") from error


def check_person_name(name: str) -> None:
    """Raises Rejected if the name cannot be used."""
    if not _PERSON_NAME.fullmatch(name):
        raise Rejected(
            f"The name {name!r} cannot be used; take up to 80 letters, digits and '@.+_-', and"
            " begin with a letter or digit."
        )


def change_role(*, name: str, role: Role, requester: str, reason: str) -> None:
    """Raises Rejected for the last admin, and if nothing would change."""
    reason = check_reason(reason)
    with logged(requester, f"made {role.value}", name, reason):
        user = _local_person(name, "role")
        if role is role_of(user):
            raise Rejected(f"{name} has the role {role.value} already.")
        if role is Role.OPERATOR:
            _check_another_admin(user)
        give_role(user, role)


def deactivate(*, name: str, requester: str, reason: str) -> None:
    """Ends access and sessions at once; the person's actions stay in the log, with their name."""
    reason = check_reason(reason)
    with logged(requester, "deactivated", name, reason):
        user = _person(name)
        if not user.is_active:
            raise Rejected(f"{name} is deactivated already.")
        _check_another_admin(user)
        User.objects.filter(pk=user.pk).update(is_active=False)
        end_sessions(user)


def reactivate(*, name: str, requester: str, reason: str) -> NewPassword:
    """Restores access with the former role, and a new one-time password for a local account."""
    reason = check_reason(reason)
    with logged(requester, "reactivated", name, reason):
        user = _person(name)
        if user.is_active:
            raise Rejected(f"{name} is active already.")
        User.objects.filter(pk=user.pk).update(is_active=True)
        user.is_active = True
        if is_of_company(user):
            return NewPassword(name, "")
        return _give_one_time_password(user)


def reset_password(*, name: str, requester: str, reason: str) -> NewPassword:
    """Ends the person's sessions. Raises Rejected for the last admin, whom it would lock out."""
    reason = check_reason(reason)
    with logged(requester, "gave a new one-time password to", name, reason):
        user = _local_person(name, "password")
        _check_another_admin(user)
        end_sessions(user)
        return _give_one_time_password(user)


def note_own_password(user: User, session_key: str | None) -> None:
    """Notes that the user chose a password of their own; only the given session stays open."""
    with logged(user.get_username(), "changed the password of", user.get_username(), "their own"):
        OneTimePassword.objects.filter(user=user).delete()
        end_sessions(user, but=session_key)


def is_of_company(user: User) -> bool:
    """Returns True if the company signs this user in: no password here, and a role by groups."""
    return bool(SocialAccount.objects.filter(user=user).exists())


def end_sessions(user: User, *, but: str | None = None) -> int:
    """Ends the user's sessions except the one with the key `but`. Returns how many it ended."""
    ending = list(UserSession.objects.filter(user=user).exclude(session_key=but))
    for session in ending:
        session.end()
    return len(ending)


def end_session(*, name: str, key: int, requester: str, reason: str) -> None:
    """Signs a person out of one browser. `key` comes from `queries.sessions`."""
    reason = check_reason(reason)
    session = UserSession.objects.filter(pk=key, user__username=name).first()
    if session is None:
        raise Rejected("This session has ended already.")
    with logged(requester, "ended a session of", name, reason):
        session.end()


def role_of(user: User) -> Role:
    is_admin = with_role_admin(is_active=None).filter(pk=user.pk).exists()
    return Role.ADMIN if is_admin else Role.OPERATOR


@contextmanager
def logged(who: str, what: str, name: str, reason: str, detail: str = "") -> Iterator[None]:
    """Serializes and logs changes to people: if two admins demote each other, one stays admin."""
    with one_at_a_time():
        yield
        record(who=who, what=what, subject=f"person {name}", reason=reason, detail=detail)


def _person(name: str) -> User:
    user = User.objects.filter(username=name).first()
    if user is None:
        raise Rejected(f"There is no person named {name!r}.")
    return user


def _local_person(name: str, what: str) -> User:
    user = _person(name)
    if is_of_company(user):
        raise Rejected(f"The {what} of {name} is the company's to change: {name} signs in there.")
    return user


def _check_another_admin(user: User) -> None:
    """Raises Rejected for the last admin with a local account and a password of their own.

    Only local accounts count, so that an admin can sign in while the company's sign-in is down.
    """
    settled = with_role_admin().filter(one_time_password=None, socialaccount=None)
    if settled.filter(pk=user.pk).exists() and not settled.exclude(pk=user.pk).exists():
        raise Rejected(
            f"{user.username} is the last admin who has signed in; make another person admin first,"
            " and have them sign in."
        )


def give_role(user: User, role: Role) -> None:
    acting = Permission.objects.get(content_type__app_label="jobs", codename="operate")
    if role is Role.ADMIN:
        user.user_permissions.add(acting)
        return
    user.user_permissions.remove(acting)
    user.groups.clear()  # a group could give the same right
    User.objects.filter(pk=user.pk).update(is_superuser=False)


def _give_one_time_password(user: User) -> NewPassword:
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    user.set_password(password)
    user.save(update_fields=["password"])
    OneTimePassword.objects.update_or_create(user=user, defaults={"issued_at": timezone.now()})
    return NewPassword(user.get_username(), password)


MARK_BYTES = 16
VALID_FOR = timedelta(hours=12)  # as long as a session
_SIGNER = TimestampSigner(salt="ftdash.accounts.services")


def new_mark() -> str:
    return _SIGNER.sign(secrets.token_urlsafe(MARK_BYTES))


@contextmanager
def sent_once(mark: str) -> Iterator[None]:
    """Commits the block together with the use of the mark, or neither.

    Raises Rejected for a mark that was used, is too old, or is not ours.
    """
    try:
        value = _SIGNER.unsign(mark, max_age=VALID_FOR)
    except BadSignature as error:
        raise Rejected("This form is too old; open it again, and resend it.") from error
    with transaction.atomic():
        _use(value)
        yield


def _use(value: str) -> None:
    now = timezone.now()
    SentForm.objects.filter(at__lt=now - VALID_FOR).delete()  # their signatures have expired
    try:
        with transaction.atomic():
            SentForm.objects.create(mark=value, at=now)
    except IntegrityError as error:
        first = SentForm.objects.get(mark=value).at
        raise Rejected(
            f"You already sent this form on {first:%Y-%m-%d %H:%M:%S} UTC, and it was carried out"
            " then. Nothing was changed now, and the secret you were given then is still valid. It"
            " cannot be shown again; if you lost it, send this form to get a new one."
        ) from error


VIEWS_MAX = 30


def save_view(person: str, name: str, query: str, *, is_default: bool) -> None:
    """Saves the choices under that name, and replaces a view that the person saved under it before.

    Raises Rejected if the person has too many views, or a text is too long.
    """
    user, name = _person(person), _name_of_view(name)
    if len(query) > SavedView.QUERY_LENGTH_MAX:
        raise Rejected("These choices are too long to be kept; search for a shorter text.")
    with transaction.atomic():
        others = SavedView.objects.select_for_update().filter(user=user).exclude(name=name)
        if len(others) >= VIEWS_MAX:
            raise Rejected(f"You have {VIEWS_MAX} saved views; delete one first.")
        if is_default:
            others.update(is_default=False)
        values = {"query": query, "is_default": is_default}
        SavedView.objects.update_or_create(user=user, name=name, defaults=values)


def change_view(person: str, key: int, name: str, *, is_default: bool) -> None:
    """Raises Rejected if the person has no such view, or has another view of that name."""
    name = _name_of_view(name)
    with transaction.atomic():
        own = SavedView.objects.select_for_update().filter(user=_person(person))
        view = own.filter(pk=key).first()
        if view is None:
            raise Rejected("You have no such saved view; reload the list.")
        if own.filter(name=name).exclude(pk=key).exists():
            raise Rejected(f"You have another saved view named {name!r}; choose another name.")
        if is_default:
            own.update(is_default=False)
        own.filter(pk=key).update(name=name, is_default=is_default)


def delete_view(person: str, key: int) -> None:
    """Deletes the view, unless it belongs to another person."""
    SavedView.objects.filter(user=_person(person), pk=key).delete()


def _name_of_view(name: str) -> str:
    if not name.strip() or len(name.strip()) > SavedView.NAME_LENGTH_MAX:
        raise Rejected(f"Give the view a name of at most {SavedView.NAME_LENGTH_MAX} characters.")
    return name.strip()
