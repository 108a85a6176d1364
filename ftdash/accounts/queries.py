"""The only reader of the rows of tokens for people; nothing in it opens anything."""

from dataclasses import dataclass
from datetime import datetime

from ftdash.accounts.models import ApiToken, TokenScope


@dataclass(frozen=True, slots=True)
class TokenView:
    name: str
    scope: TokenScope
    created_by: str
    created_at: datetime
    last_used_at: datetime | None  # to the minute; None: never
    revoked_by: str
    revoked_at: datetime | None


def tokens() -> list[TokenView]:
    """By name, those that were revoked too."""
    return [
        TokenView(
            name=row.name,
            scope=TokenScope(row.scope),
            created_by=row.created_by,
            created_at=row.created_at,
            last_used_at=row.last_used_at,
            revoked_by=row.revoked_by,
            revoked_at=row.revoked_at,
        )
        for row in ApiToken.objects.all()
    ]
