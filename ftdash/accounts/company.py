"""Company sign-in: who may enter, and with which role; OpenID Connect by django-allauth.

Two doors lead here: OpenID Connect and a header of a trusted proxy (`authentication`).
Both hand over an `Identity`. The groups decide the role at every sign-in, so that a change in the
company takes effect here. A person without a configured group gets no account.

A company sign-in never opens a local account (one with a password here) of the same name: otherwise
a person who may choose a name there could take over that account here.

allauth does discovery, state, PKCE, and the exchange of the code for tokens. It reads the ID token
straight from the provider's token endpoint, over TLS, and checks its issuer, audience and expiry.
That is why the issuer must use https (OpenID Connect Core 3.1.3.7); http is allowed on loopback
only. Claims are read once and not stored.

Chosen over mozilla-django-oidc because allauth also provides the second factor and the sessions:
every sign-in takes the same steps, however it begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import jwt
import requests
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin
from allauth.socialaccount.providers.base import AuthProcess
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

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
    """Where a company sign-in comes from; `SocialAccount.provider` stores the value."""

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
    """Returns the person's account, made at the first sign-in, with the role of their groups now.

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
    """Names the groups that open ftdash, if there are any.

    They are no secret to a member of the company, and the person has to ask for one of them.
    """
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


PROVIDER = Door.OPENID.value
ANSWERS_WITHIN_S = 5.0
CLOCKS_DIFFER_MAX = timedelta(seconds=60)
"""A `Date` header has whole seconds, and an ID token is valid for minutes."""

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
REFUSED = 403


def is_configured() -> bool:
    return bool(settings.OIDC_ISSUER)


def configuration_problem() -> str:
    """One sentence about settings that cannot work, with the cure; empty if there is none."""
    if not settings.OIDC_CLIENT_ID:
        return "FTDASH_OIDC_CLIENT_ID is unset; set it to the client id that the provider gave."
    if not settings.OIDC_SECRET:
        return (
            "There is no client secret, or this process may not read it; set FTDASH_OIDC_SECRET,"
            " FTDASH_OIDC_SECRET_FILE, or the credential ftdash-oidc-secret."
        )
    place = urlsplit(settings.OIDC_ISSUER)
    if place.scheme != "https" and place.hostname not in LOOPBACK:
        return "FTDASH_OIDC_ISSUER has to begin with https://, because tokens are trusted by TLS."
    if not settings.OPERATOR_GROUPS | settings.ADMIN_GROUPS:
        return (
            "No group opens ftdash; set FTDASH_OPERATOR_GROUPS and FTDASH_ADMIN_GROUPS to groups of"
            " the company."
        )
    return ""


class Unwell(Exception):
    """The sign-in at the provider does not work; the message says why, and what cures it."""


def probe() -> None:
    """Checks that the provider answers, knows this client, and has the same time. Raises Unwell.

    Asks for tokens with a code that does not exist. A provider that accepts the client's secret
    rejects the code; any other provider rejects the client.
    """
    if problem := configuration_problem():
        raise Unwell(problem)
    try:
        found = requests.get(_discovery(), timeout=ANSWERS_WITHIN_S)
        found.raise_for_status()
        described = found.json()
        issuer, token_endpoint = described["issuer"].rstrip("/"), described["token_endpoint"]
    except (requests.RequestException, KeyError, AttributeError, TypeError) as error:
        raise Unwell(sentence_for(error)) from error
    if issuer != settings.OIDC_ISSUER:
        raise Unwell(f"The provider calls itself {issuer}; set FTDASH_OIDC_ISSUER to exactly that.")
    _check_clock(found.headers.get("Date"))
    _check_secret(token_endpoint, described.get("token_endpoint_auth_methods_supported", []))


def _discovery() -> str:
    return f"{settings.OIDC_ISSUER}/.well-known/openid-configuration"


def _check_clock(date: str | None) -> None:
    try:
        there: datetime = parsedate_to_datetime(date or "")
    except ValueError:
        return  # there is no usable date
    apart = abs(timezone.now() - there)
    if apart > CLOCKS_DIFFER_MAX:
        raise Unwell(_clocks(f"{apart.total_seconds():.0f} s"))


def _check_secret(token_endpoint: str, methods: list[str]) -> None:
    known = {"client_id": settings.OIDC_CLIENT_ID, "client_secret": settings.OIDC_SECRET}
    tried = {"grant_type": "authorization_code", "code": "ftdash-doctor", "redirect_uri": "none"}
    by_header = "client_secret_post" not in methods and "client_secret_basic" in methods
    try:
        answer = requests.post(
            token_endpoint,
            data=tried if by_header else tried | known,
            auth=(settings.OIDC_CLIENT_ID, settings.OIDC_SECRET) if by_header else None,
            timeout=ANSWERS_WITHIN_S,
        )
    except requests.RequestException as error:
        raise Unwell(sentence_for(error)) from error
    if any(word in answer.text for word in _UNKNOWN_CLIENT):
        raise Unwell(_SECRET)


_UNKNOWN_CLIENT = ("invalid_client", "unauthorized_client")
_SECRET = (
    "The provider does not accept the client id or the secret of ftdash; correct"
    " FTDASH_OIDC_CLIENT_ID and FTDASH_OIDC_SECRET."
)


def _clocks(apart: str = "too far") -> str:
    return (
        f"The clocks of ftdash and of the provider are {apart} apart; let a time service (chrony,"
        " systemd-timesyncd) set both."
    )


def sentence_for(error: BaseException | None) -> str:
    """Says what went wrong between ftdash and the provider, and the cure; names no secret."""
    match error:
        case requests.HTTPError() | requests.JSONDecodeError() | KeyError() | TypeError():
            return (
                f"{_discovery()} describes no OpenID provider; correct FTDASH_OIDC_ISSUER, or wait"
                " until the provider works again."
            )
        case requests.RequestException():
            return (
                f"{settings.OIDC_ISSUER} does not answer; start the provider, open the network to"
                " it, or correct FTDASH_OIDC_ISSUER."
            )
    if isinstance(
        error and error.__cause__, jwt.ExpiredSignatureError | jwt.ImmatureSignatureError
    ):
        return _clocks()
    if isinstance(error and error.__cause__, jwt.InvalidAudienceError | jwt.InvalidIssuerError):
        return (
            "The provider's token is for another client, or of another issuer; correct"
            " FTDASH_OIDC_CLIENT_ID and FTDASH_OIDC_ISSUER."
        )
    if any(word in str(error) for word in _UNKNOWN_CLIENT):
        return _SECRET
    return "The provider did not let you in; start again on the sign-in page."


def refusal(request: HttpRequest, sentence: str) -> HttpResponse:
    """A page with one sentence; the way back leads to the local sign-in."""
    return render(request, "registration/refused.html", {"sentence": sentence}, status=REFUSED)


class PlainAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """allauth without its own texts and sign-up: people are invited, or come from the company."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def add_message(self, *_: Any, **__: Any) -> None:
        """Our pages show what was done."""


class CompanyAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    def list_apps(
        self, request: HttpRequest, provider: str | None = None, client_id: str | None = None
    ) -> list[SocialApp]:
        """Returns the one app that the environment configures; ignores rows of allauth's table."""
        if not is_configured() or provider not in (None, PROVIDER, "openid_connect"):
            return []
        return [
            SocialApp(
                provider="openid_connect",
                provider_id=PROVIDER,
                name=settings.OIDC_LABEL,
                client_id=settings.OIDC_CLIENT_ID,
                secret=settings.OIDC_SECRET,
                settings={
                    "server_url": settings.OIDC_ISSUER,
                    "oauth_pkce_enabled": True,
                    "scope": settings.OIDC_SCOPES,
                },
            )
        ]

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Ends the sign-in unless `let_in` accepts this person.

        Only signs in: it never connects an open session to a company account, because a link from
        another site could ask for that.
        """
        claims, sociallogin.account.extra_data = sociallogin.account.extra_data, {}
        if sociallogin.state.get("process") != AuthProcess.LOGIN:
            raise ImmediateHttpResponse(refusal(request, sentence_for(None)))
        try:
            sociallogin.user = let_in(identity_of(claims))
        except Rejected as rejected:
            raise ImmediateHttpResponse(refusal(request, str(rejected))) from rejected
        sociallogin.user.socialaccount_set.filter(provider=PROVIDER).update(extra_data={})

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: Exception | None = None,
        extra_context: Any = None,
    ) -> None:
        raise ImmediateHttpResponse(refusal(request, sentence_for(exception)))


def identity_of(claims: dict[str, Any]) -> Identity:
    """Reads the claims of the ID token and of the userinfo endpoint; the latter take precedence."""
    merged = {**claims.get("id_token", {}), **claims.get("userinfo", {})}
    name, groups = merged.get(settings.OIDC_NAME_CLAIM), merged.get(settings.OIDC_GROUPS_CLAIM, [])
    if not isinstance(name, str) or not name:
        raise Rejected(
            f"The provider did not say your name: its claim {settings.OIDC_NAME_CLAIM} is missing."
            " An admin has to set FTDASH_OIDC_NAME_CLAIM, or the scopes of FTDASH_OIDC_SCOPES."
        )
    listed = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    return Identity(
        Door.OPENID,
        str(merged["sub"]),
        name,
        frozenset(each for each in listed if isinstance(each, str)),
    )
