"""Sends people who signed in with a one-time password to the page where they choose their own.

The middleware checks this once, at the sign-in, and notes it in the session. A new one-time
password ends all sessions, so no session is older than it.
"""

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.deprecation import MiddlewareMixin

from ftdash.accounts.models import OneTimePassword

MUST_CHOOSE = "must-choose-password"
_STAYS_OPEN = ("password", "logout")


class FirstSignInMiddleware(MiddlewareMixin):
    """Runs after the session's. In such a session no other page answers, reading or acting."""

    def process_view(
        self,
        request: HttpRequest,
        view: Callable[..., HttpResponse],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> HttpResponse | None:
        match = request.resolver_match
        if MUST_CHOOSE not in request.session or (match and match.view_name in _STAYS_OPEN):
            return None
        return redirect("password")


def note_sign_in(*, request: HttpRequest, user: AbstractBaseUser, **_: Any) -> None:
    if OneTimePassword.objects.filter(user_id=user.pk).exists():
        request.session[MUST_CHOOSE] = True


def has_chosen(request: HttpRequest) -> None:
    request.session.pop(MUST_CHOOSE, None)


def connect() -> None:
    user_logged_in.connect(note_sign_in, dispatch_uid="first sign-in")
