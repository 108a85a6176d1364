"""Programs that ask the API, as the tests of it need them."""

from typing import Any

from django.test import Client

from ftdash.accounts.models import TokenScope
from ftdash.accounts.services import create_token


def bearer(scope: TokenScope = TokenScope.ACT, name: str = "deploy", **options: Any) -> Client:
    """A client with a token, and without any cookie."""
    secret = create_token(name=name, scope=scope, created_by="ada").secret
    return Client(headers={"Authorization": f"Bearer {secret}"}, **options)
