"""The only writers of API tokens: made with a random secret that is told once, and revoked.

A revoked token's row and name stay, so that the audit log never names somebody else by it.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass

from django.db import IntegrityError
from django.utils import timezone

from ftdash.accounts.models import ApiToken, TokenScope
from pipelines.domain.errors import Rejected

PREFIX = "ftd_"
"""Tells a reader of a leaked file, and a scanner for secrets, what it is."""

SECRET_BYTES = 32
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


@dataclass(frozen=True, slots=True)
class NewToken:
    """`secret` is known here and now only."""

    name: str
    scope: TokenScope
    secret: str


def create_token(*, name: str, scope: TokenScope, created_by: str) -> NewToken:
    """Raises Rejected when the name cannot be used or is taken."""
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"The token name {name!r} cannot be used; take up to 80 lower-case letters, digits,"
            " '-' and '_', and begin with a letter or digit."
        )
    if ApiToken.objects.filter(name=name).exists():
        raise Rejected(_taken(name))
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    try:
        ApiToken.objects.create(
            name=name,
            digest=digest_of(secret),
            scope=scope,
            created_by=created_by,
            created_at=timezone.now(),
        )
    except IntegrityError as error:
        raise Rejected(_taken(name)) from error
    return NewToken(name, scope, secret)


def revoke_token(*, name: str, revoked_by: str) -> None:
    """From now on it opens nothing. Raises Rejected when there is none that is in use."""
    in_use = ApiToken.objects.filter(revoked_at=None)
    if not in_use.filter(name=name).update(revoked_by=revoked_by, revoked_at=timezone.now()):
        known = ", ".join(in_use.values_list("name", flat=True)) or "none"
        raise Rejected(f"There is no token {name!r} to revoke; in use: {known}.")


def digest_of(secret: str) -> str:
    """256 random bits need no slow hash: they cannot be guessed from their digest."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _taken(name: str) -> str:
    return f"There is, or was, a token {name!r}; choose another name."
