"""The only writer of people: invites them, gives them roles and passwords, and deactivates them.

A role is the permission `jobs.operate` or its absence. There is always an admin who can sign in
with a password of their own; changes that would end that are refused. Every change is logged.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from django.contrib.auth.models import Permission, User
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ftdash.accounts import services
from ftdash.accounts.models import OneTimePassword
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected

PASSWORD_BYTES = 15
_MODEL_BACKEND = "django.contrib.auth.backends.ModelBackend"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@.+_-]{0,79}")


class Role(StrEnum):
    OPERATOR = "operator"  # sees everything
    ADMIN = "admin"  # sees everything and acts


@dataclass(frozen=True, slots=True)
class NewPassword:
    """`password` is known only here and now; its person must change it at first use."""

    name: str
    password: str


def with_role_admin(*, is_active: bool | None = True) -> QuerySet[User]:
    """`is_active` None: deactivated ones too."""
    return User.objects.with_perm(
        "jobs.operate",
        is_active=is_active,  # type: ignore[arg-type]  # None is documented
        backend=_MODEL_BACKEND,
    )


def invite(*, name: str, role: Role, requester: str, reason: str) -> NewPassword:
    """Raises Rejected if the name cannot be used or is taken, ignoring case."""
    reason = check_reason(reason)
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"The name {name!r} cannot be used; take up to 80 letters, digits and '@.+_-', and"
            " begin with a letter or digit."
        )
    if User.objects.filter(username__iexact=name).exists():
        raise Rejected(f"There is, or was, somebody named {name!r}; choose another name.")
    try:
        with _logged(requester, "invited", name, reason, detail=f"as {role.value}"):
            user = User.objects.create_user(name)
            _give_role(user, role)
            return _give_one_time_password(user)
    except IntegrityError as error:
        raise Rejected(f"Somebody named {name!r} was just invited by somebody else.") from error


def change_role(*, name: str, role: Role, requester: str, reason: str) -> None:
    """Raises Rejected for the last admin, and if nothing would change."""
    reason = check_reason(reason)
    with _logged(requester, f"made {role.value}", name, reason):
        user = _person(name)
        if role is role_of(user):
            raise Rejected(f"{name} has the role {role.value} already.")
        if role is Role.OPERATOR:
            _check_another_admin(user)
        _give_role(user, role)


def deactivate(*, name: str, requester: str, reason: str) -> None:
    """Ends access at once, sessions included; what they did stays in the log, with their name."""
    reason = check_reason(reason)
    with _logged(requester, "deactivated", name, reason):
        user = _person(name)
        if not user.is_active:
            raise Rejected(f"{name} is deactivated already.")
        _check_another_admin(user)
        User.objects.filter(pk=user.pk).update(is_active=False)


def reactivate(*, name: str, requester: str, reason: str) -> NewPassword:
    """Restores access with the former role and a new one-time password."""
    reason = check_reason(reason)
    with _logged(requester, "reactivated", name, reason):
        user = _person(name)
        if user.is_active:
            raise Rejected(f"{name} is active already.")
        User.objects.filter(pk=user.pk).update(is_active=True)
        user.is_active = True
        return _give_one_time_password(user)


def reset_password(*, name: str, requester: str, reason: str) -> NewPassword:
    """Ends their sessions. Raises Rejected for the last admin, whom it would lock out."""
    reason = check_reason(reason)
    with _logged(requester, "gave a new one-time password to", name, reason):
        user = _person(name)
        _check_another_admin(user)
        return _give_one_time_password(user)


def note_own_password(user: User) -> None:
    """Notes that they have chosen a password themselves."""
    with _logged(user.get_username(), "changed the password of", user.get_username(), "their own"):
        OneTimePassword.objects.filter(user=user).delete()


def role_of(user: User) -> Role:
    is_admin = with_role_admin(is_active=None).filter(pk=user.pk).exists()
    return Role.ADMIN if is_admin else Role.OPERATOR


@contextmanager
def _logged(who: str, what: str, name: str, reason: str, detail: str = "") -> Iterator[None]:
    """Serializes changes of people: if two admins demote each other, one remains."""
    with transaction.atomic():
        Permission.objects.select_for_update().get(
            content_type__app_label="jobs", codename="operate"
        )
        yield
        services.record(who=who, what=what, subject=f"person {name}", reason=reason, detail=detail)


def _person(name: str) -> User:
    user = User.objects.filter(username=name).first()
    if user is None:
        raise Rejected(f"There is nobody named {name!r}.")
    return user


def _check_another_admin(user: User) -> None:
    """A person who has not yet replaced the one-time password does not count as an admin."""
    settled = with_role_admin().filter(one_time_password=None)
    if settled.filter(pk=user.pk).exists() and not settled.exclude(pk=user.pk).exists():
        raise Rejected(
            f"{user.username} is the last admin who has signed in; make somebody else admin first,"
            " and have them sign in."
        )


def _give_role(user: User, role: Role) -> None:
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
