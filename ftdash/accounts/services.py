"""The only writers of API tokens: they make random secrets, shown once, and revoke tokens.

A revoked token's row and name stay, so that its name in the audit log never means another one.

The log of what people changed other than pipelines: accounts, tokens, alerts, retention.

The only writer of `AdminAction`. Actions on pipelines are logged by their requests.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction
from django.utils import timezone

from ftdash.accounts.models import AdminAction, ApiToken, TokenScope
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected


def record(*, who: str, what: str, subject: str, reason: str, detail: str = "") -> None:
    """Call it in the transaction of the change, so that neither exists without the other."""
    AdminAction.objects.create(
        at=timezone.now(), who=who, what=what, subject=subject, detail=detail, reason=reason
    )


PREFIX = "ftd_"
"""Shows what it is to a reader of a leaked file, and to a scanner for secrets."""

SECRET_BYTES = 32
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


@dataclass(frozen=True, slots=True)
class NewToken:
    """`secret` is known only here and now."""

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
    """Raises Rejected if the name cannot be used or is taken, or the token would be useless."""
    reason = check_reason(reason)
    if not _NAME.fullmatch(name):
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
    """The token is invalid from now on. Raises Rejected if no such token is in use."""
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
