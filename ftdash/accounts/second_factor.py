"""The second factor of local accounts: who has one, whether all need one, and how one is reset.

allauth keeps the factors and asks for them; this module decides when one is missing. An account of
the company has none here: the company asks for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allauth.mfa import app_settings
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.base.forms import AuthenticateForm, BaseAuthenticateForm, ReauthenticateForm
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authenticator_added, authenticator_removed
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone

from ftdash.accounts.models import RequiredFactor
from ftdash.accounts.services import end_sessions, is_of_company, logged, record
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected

FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
"""Recovery codes only stand in for one of these."""


class FactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:
        count = Authenticator.objects.filter(user=user, type=type).count()
        return f"Security key {count + 1}"


class _OnlyOnce(BaseAuthenticateForm):  # type: ignore[misc]
    """Refuses a used code for as long as it is valid.

    allauth remembers one for a step of 30 s only, and `MFA_TOTP_TOLERANCE` lets it live longer.
    """

    def clean_code(self) -> str:
        code = str(super().clean_code())
        digits = "".join(filter(str.isalnum, code))  # allauth ignores blanks and punctuation
        lives_s = app_settings.TOTP_PERIOD * (2 * app_settings.TOTP_TOLERANCE + 1)
        if not cache.add(f"used-code-{self.user.pk}-{digits}", True, lives_s):
            raise FactorAdapter().validation_error("incorrect_code")
        return code


class SignInForm(_OnlyOnce, AuthenticateForm):  # type: ignore[misc]
    """Asks for a code at the sign-in."""


class ConfirmForm(_OnlyOnce, ReauthenticateForm):  # type: ignore[misc]
    """Asks for a code before a change to the account."""


@dataclass(frozen=True, slots=True)
class FactorView:
    key: int
    is_app: bool  # an app that shows codes; otherwise a security key
    name: str
    added_at: datetime
    last_used_at: datetime | None


def factors_of(user: User) -> list[FactorView]:
    rows = Authenticator.objects.filter(user=user, type__in=FACTORS).order_by("pk")
    return [
        FactorView(
            key=row.pk,
            is_app=row.type == Authenticator.Type.TOTP,
            name=str(row) if row.type == Authenticator.Type.WEBAUTHN else "Authenticator app",
            added_at=row.created_at,
            last_used_at=row.last_used_at,
        )
        for row in rows
    ]


def people_with_one() -> set[str]:
    """Returns the names of the people who have a second factor."""
    rows = Authenticator.objects.filter(type__in=FACTORS)
    return set(rows.values_list("user__username", flat=True))


def is_required() -> bool:
    return RequiredFactor.objects.exists()


def is_missing(user: User) -> bool:
    """Returns True if this person must add a second factor before anything else."""
    return is_required() and not is_of_company(user) and not factors_of(user)


def require(*, requester: str, reason: str) -> None:
    """Requires a second factor of every local account from now on.

    Ends the sessions of people who have none. Raises Rejected for an admin without one: they would
    sign themselves out.
    """
    reason = check_reason(reason)
    if is_required():
        raise Rejected("A second factor is required already.")
    if not people_with_one() & {requester}:
        raise Rejected("Add a second factor to your own account first, on the page of passwords.")
    with logged(requester, "requires a second factor of", "everyone with a password", reason):
        RequiredFactor.objects.create(since=timezone.now())
        for user in _without_one():
            end_sessions(user)


def require_no_more(*, requester: str, reason: str) -> None:
    reason = check_reason(reason)
    with logged(requester, "requires no second factor of", "everyone with a password", reason):
        if not RequiredFactor.objects.all().delete()[0]:
            raise Rejected("A second factor is not required.")


def reset(*, name: str, requester: str, reason: str) -> None:
    """Removes all factors and recovery codes of a person who lost theirs, and signs them out.

    The password alone then lets them in again.
    """
    reason = check_reason(reason)
    with logged(requester, "reset the second factor of", name, reason):
        user = User.objects.filter(username=name).first()
        if user is None or not factors_of(user):
            raise Rejected(f"{name} has no second factor.")
        Authenticator.objects.filter(user=user).delete()
        end_sessions(user)


def _without_one() -> Iterable[User]:
    has_one = Q(pk__in=Authenticator.objects.filter(type__in=FACTORS).values("user"))
    return User.objects.filter(socialaccount=None).exclude(has_one)


MUST_ADD = "must-add-factor"
"""The session's key that marks a person who must add a second factor before anything else."""


def note_change(
    *, signal: Any, request: HttpRequest, user: User, authenticator: Authenticator, **_: Any
) -> None:
    """Notes the change in the session, so that other pages open or close, and in the log."""
    if authenticator.type not in FACTORS:
        return
    name = user.get_username()
    what = "added" if signal is authenticator_added else "removed"
    label = authenticator.get_type_display()
    record(who=name, what=f"{what} a second factor of", subject=f"person {name}", reason=str(label))
    note_missing(request, user)


def note_missing(request: HttpRequest, user: User) -> None:
    if is_missing(user):
        request.session[MUST_ADD] = True
    else:
        request.session.pop(MUST_ADD, None)


def connect() -> None:
    for signal in (authenticator_added, authenticator_removed):
        signal.connect(note_change, dispatch_uid="second factor")
