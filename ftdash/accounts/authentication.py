"""Identifies callers: the bearer of a token, or the person of a session.

    Authorization: Bearer ftd_...        any client; needs no CSRF token
    the session cookie                   a page of this dashboard; to act, with its CSRF token

If there is a header, it alone decides: a cookie never makes up for a wrong token. To act, a caller
must be an administrator (`jobs.operate`) or the bearer of a token of that scope. Only an
administrator's session may change people and tokens. No token may, of any scope: otherwise a person
or token made with a stolen token would keep working after that token was revoked.

This module counts wrong tokens by address, over all web servers: the 21st within a minute and later
ones get 429. They never lock out a valid token; otherwise one broken script behind a proxy would
stop all others. 256 random bits need no lock: the limit only spares the log and the caller's time.

A token of the scope `listen` is part of a job's code: it reports progress and opens nothing else.
No other token and no session can report, so every report names a token made for it.

`FirstSignInMiddleware` sends a person who signed in with a one-time password to the page where they
choose their own. It sends a person who needs a second factor to the page where they add one. The
sign-in notes both in the session. A new one-time password or a new requirement ends the sessions,
so no session is older than either.

A proxy that signs people in names them in a header. `ftdash.asgi` removes the header from requests
that do not come from a trusted proxy. The session lasts as long as the proxy names the same person
with the same groups.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in
from django.core.cache import cache
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from ftdash.accounts import second_factor
from ftdash.accounts.company import Door, Identity, let_in
from ftdash.accounts.models import ApiToken, OneTimePassword, TokenScope
from ftdash.accounts.services import MODEL_BACKEND, digest_of
from pipelines.domain.errors import Rejected

log = logging.getLogger("ftdash.accounts")

FAILURES_MAX = 20
WINDOW_S = 60


def count_failure(address: str) -> bool:
    """Counts a wrong token. Returns True if this address has sent too many within the window."""
    key = f"wrong-tokens-{address.replace(':', '_')}"
    if cache.get(key, 0) > FAILURES_MAX:
        return True  # writes nothing, so that a flood costs one read each
    cache.add(key, 0, WINDOW_S)
    try:
        count = cache.incr(key)
    except ValueError:  # the window ended in the meantime
        return False
    if count == 1 or count == FAILURES_MAX + 1:
        log.warning("Wrong API token from %s (%s within a minute).", address, count)
    return count > FAILURES_MAX


USE_NOTED_EVERY = timedelta(minutes=1)

_WHO = (
    "Sign in, or send the header 'Authorization: Bearer TOKEN'; `manage.py api_token create NAME`"
    " makes a token."
)
_WRONG = "This token is not valid; it was mistyped, was revoked or has expired."
_TOO_MANY = f"Too many wrong tokens came from this address; try again in {WINDOW_S} s."
_NOT_ALLOWED = "Acting on pipelines needs the admin role, or a token of scope 'act'."
_NOT_CONFIGURING = "Changing settings needs the admin role, or a token of scope 'configure'."
_NOT_IN_PERSON = "Only a signed-in admin can change people and tokens; a token cannot."
_ONLY_REPORTS = "This token only reports progress of queries; to read, use one of scope 'read'."
_NOT_LISTENING = "Reporting progress of queries needs a token of scope 'listen'."
_NO_SCRIPT = (
    "A session acts here by a script of the dashboard's own pages only, over HTTPS or on loopback."
)
_OWN_SCRIPTS = (("same-origin", "cors"), ("same-origin", "same-origin"))
_NO_CSRF = "A session needs the CSRF token to act; send it as X-CSRFToken, or use a bearer token."


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is the caller's name in the audit log."""

    name: str
    may_act: bool
    may_configure: bool
    has_session: bool


class Refused(Exception):
    """`status` is the HTTP status: 401, 403 or 429."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def caller_of(request: HttpRequest) -> Caller:
    """Identifies the caller. Raises Refused if it is unknown, or its token only reports."""
    header = request.headers.get("Authorization")
    if header is not None:
        token = _token_of(request, header)
        if token.scope == TokenScope.LISTEN:
            raise Refused(403, _ONLY_REPORTS)
        return _bearer(token)
    user = request.user
    if not user.is_authenticated:
        raise Refused(401, _WHO)
    is_admin = user.has_perm("jobs.operate")
    return Caller(user.get_username(), is_admin, may_configure=is_admin, has_session=True)


def reporter_of(request: HttpRequest) -> Caller:
    """The listener of a query. Raises Refused unless it has a token of the scope `listen`."""
    header = request.headers.get("Authorization")
    if header is None:
        caller_of(request)  # raises if no one has signed in
        raise Refused(403, _NOT_LISTENING)
    token = _token_of(request, header)
    if token.scope != TokenScope.LISTEN:
        raise Refused(403, _NOT_LISTENING)
    return _bearer(token)


def check_may_act(caller: Caller, request: HttpRequest) -> None:
    """Raises Refused unless this caller may change something with this request."""
    if not caller.may_act:
        raise Refused(403, _NOT_ALLOWED)
    if caller.has_session and _lacks_csrf_token(request):
        raise Refused(403, _NO_CSRF)


def check_may_configure(caller: Caller, request: HttpRequest) -> None:
    """Like `check_may_act`, for alert rules, channels, and how long history is kept."""
    if not caller.may_configure:
        raise Refused(403, _NOT_CONFIGURING)
    check_may_act(caller, request)


def check_in_person(caller: Caller, request: HttpRequest) -> None:
    """Like `check_may_act`, for people and tokens."""
    if not caller.has_session:
        raise Refused(403, _NOT_IN_PERSON)
    check_may_act(caller, request)


def check_may_act_by_get(caller: Caller, request: HttpRequest) -> None:
    """Like `check_may_act`, for an address that acts on a GET, as one of Flink's does.

    A browser says where a request comes from: only scripts of our own pages get through, never a
    link, an image or another site.
    """
    check_may_act(caller, request)
    origin = (request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Mode"))
    if caller.has_session and origin not in _OWN_SCRIPTS:
        raise Refused(403, _NO_SCRIPT)


def _token_of(request: HttpRequest, header: str) -> ApiToken:
    """Finds the token in the header. Raises Refused if it is unknown or no longer valid."""
    scheme, _, secret = header.partition(" ")
    digest = digest_of(secret.strip())
    is_valid_still = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    token = ApiToken.objects.filter(is_valid_still, digest=digest, revoked_at=None).first()
    if token is None or scheme.lower() != "bearer":
        is_throttled = count_failure(request.META.get("REMOTE_ADDR", ""))
        raise Refused(429, _TOO_MANY) if is_throttled else Refused(401, _WRONG)
    _note_use(token)
    return token


def _bearer(token: ApiToken) -> Caller:
    may_configure = token.scope == TokenScope.CONFIGURE
    may_act = may_configure or token.scope == TokenScope.ACT
    return Caller(f"token {token.name}", may_act, may_configure, has_session=False)


def _note_use(token: ApiToken) -> None:
    now = timezone.now()
    unnoted = Q(last_used_at=None) | Q(last_used_at__lt=now - USE_NOTED_EVERY)
    ApiToken.objects.filter(unnoted, pk=token.pk).update(last_used_at=now)


def _lacks_csrf_token(request: HttpRequest) -> bool:
    """Checks here, because the middleware knows no bearer tokens and so exempts API addresses."""
    _ = request.body  # otherwise the check consumes it as a form, and no one can read it again
    check = _Verdict(_unused)
    check.process_request(request)
    return check.process_view(request, _unused, (), {}) is not None


class _Verdict(CsrfViewMiddleware):
    """Django's check, without sending its answer."""


def _unused(_: HttpRequest) -> HttpResponse:
    return HttpResponse()


MUST_CHOOSE = "must-choose-password"
_STAYS_OPEN = ("password", "logout")
_FOR_A_FACTOR = (
    *("mfa_index", "mfa_activate_totp", "mfa_add_webauthn", "mfa_view_recovery_codes"),
    *("mfa_reauthenticate", "mfa_reauthenticate_webauthn", "account_reauthenticate"),
)


class FirstSignInMiddleware(MiddlewareMixin):
    """Closes all other pages while a password or second factor is due.

    Runs after the session middleware.
    """

    def process_view(
        self,
        request: HttpRequest,
        view: Callable[..., HttpResponse],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> HttpResponse | None:
        match = request.resolver_match
        name = match.view_name if match else ""
        if MUST_CHOOSE in request.session:
            return None if name in _STAYS_OPEN else redirect("password")
        if second_factor.MUST_ADD in request.session:
            user: Any = request.user
            second_factor.note_missing(request, user)  # one may have been added in another session
        if second_factor.MUST_ADD in request.session:
            is_open = name in _STAYS_OPEN or name in _FOR_A_FACTOR
            return None if is_open else redirect("mfa_index")
        return None


NAMED_BY_PROXY = "named-by-proxy"
"""The session's key for the name and groups that the proxy gave when the session was opened."""


class ProxySignInMiddleware(MiddlewareMixin):
    """Runs after the session middleware and before the one that requires a sign-in."""

    def process_view(
        self,
        request: HttpRequest,
        view: Callable[..., HttpResponse],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> HttpResponse | None:
        if not settings.REMOTE_USER_HEADER or "Authorization" in request.headers:
            return None
        identity = _named_by_proxy(request)
        opened_for = request.session.get(NAMED_BY_PROXY)
        now = [identity.name, sorted(identity.groups)] if identity else None
        if opened_for == now:
            return None
        if opened_for is not None:
            logout(request)
        elif request.user.is_authenticated:
            return None  # signed in with a local password
        return _sign_in(request, identity, now, view) if identity else None


def _named_by_proxy(request: HttpRequest) -> Identity | None:
    name = request.headers.get(settings.REMOTE_USER_HEADER, "").strip()
    listed = request.headers.get(settings.REMOTE_GROUPS_HEADER or "-", "").split(",")
    groups = frozenset(filter(None, map(str.strip, listed)))
    return Identity(Door.PROXY, name, name, groups) if name else None


def _sign_in(
    request: HttpRequest, identity: Identity, now: Any, view: Callable[..., HttpResponse]
) -> HttpResponse | None:
    """Addresses that need no sign-in answer strangers, too."""
    try:
        user = let_in(identity)
    except Rejected as refusal:
        if not getattr(view, "login_required", True):
            return None
        return render(request, "registration/refused.html", {"sentence": str(refusal)}, status=403)
    login(request, user, backend=MODEL_BACKEND)
    request.session[NAMED_BY_PROXY] = now
    return None


def note_sign_in(*, request: HttpRequest, user: User, **_: Any) -> None:
    if OneTimePassword.objects.filter(user_id=user.pk).exists():
        request.session[MUST_CHOOSE] = True
    second_factor.note_missing(request, user)
    note_session(request)


def note_session(request: HttpRequest) -> None:
    """Lists the session of this request among those that its person, and admins, can end."""
    if "REMOTE_ADDR" in request.META:
        UserSession.objects.create_from_request(request)


def has_chosen(request: HttpRequest) -> None:
    request.session.pop(MUST_CHOOSE, None)


def connect() -> None:
    user_logged_in.connect(note_sign_in, dispatch_uid="first sign-in")
