"""Tokens: shown once, stored as digests, scoped and revocable; wrong ones are counted."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from ftdash.accounts import authentication, queries, services
from ftdash.accounts.models import ApiToken, TokenScope
from pipelines.domain.errors import Rejected
from tests.web.api_callers import bearer

pytestmark = pytest.mark.usefixtures("site")


def test_a_token_is_stored_as_its_digest_only() -> None:
    token = services.create_token(name="ci", scope=TokenScope.READ, created_by="ada", reason="x")

    row = ApiToken.objects.get()

    assert len(token.secret) >= 43
    assert token.secret not in str(row.__dict__)
    assert row.digest == services.digest_of(token.secret)
    assert row.created_by == "ada"


def test_two_tokens_never_have_the_same_secret() -> None:
    made = [
        services.create_token(name=name, scope=TokenScope.READ, created_by="ada", reason="x").secret
        for name in ("one", "two")
    ]

    assert made[0] != made[1]


def test_a_token_is_accepted_and_its_last_use_is_noted_to_the_minute() -> None:
    client = bearer(TokenScope.READ)

    assert client.get("/v1/config").status_code == 200
    first = queries.tokens()[0].last_used_at
    client.get("/v1/config")

    assert first is not None
    assert queries.tokens()[0].last_used_at == first
    ApiToken.objects.update(last_used_at=timezone.now() - timedelta(minutes=2))
    client.get("/v1/config")
    assert queries.tokens()[0].last_used_at > first - timedelta(minutes=1)


def test_a_revoked_token_is_rejected_and_its_name_stays_taken() -> None:
    client = bearer(TokenScope.READ)

    services.revoke_token(name="deploy", revoked_by="ada", reason="x")

    assert client.get("/v1/config").status_code == 401
    with pytest.raises(Rejected, match="There is, or was, a token 'deploy'"):
        services.create_token(name="deploy", scope=TokenScope.READ, created_by="bob", reason="x")
    with pytest.raises(Rejected, match="no token 'deploy' to revoke"):
        services.revoke_token(name="deploy", revoked_by="bob", reason="x")


def test_an_expired_token_is_rejected() -> None:
    client = bearer(TokenScope.READ)
    assert client.get("/v1/config").status_code == 200

    ApiToken.objects.update(expires_at=timezone.now())

    assert client.get("/v1/config").status_code == 401
    assert queries.tokens()[0].has_expired


def test_a_token_that_expires_now_is_not_created() -> None:
    with pytest.raises(Rejected, match="expire later than now"):
        services.create_token(
            name="ci",
            scope=TokenScope.READ,
            created_by="ada",
            reason="drill",
            expires_at=timezone.now(),
        )


def test_the_log_says_who_created_and_revoked_a_token_and_why() -> None:
    bearer(TokenScope.READ)
    services.revoke_token(name="deploy", revoked_by="bob", reason="it leaked")

    revoked, made = queries.admin_actions()

    assert (revoked.who, revoked.what, revoked.subject) == ("bob", "revoked", "token deploy")
    assert revoked.reason == "it leaked"
    assert (made.who, made.what, made.detail) == (
        "ada",
        "made",
        "to see everything, without an end",
    )


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", "Bearer", "", "Basic YTpi", "Bearer ftd_\u00e9", "Bearer a b"],
)
def test_an_invalid_authorization_header_is_rejected_even_with_a_session(
    admin: Client, header: str
) -> None:
    answer = admin.get("/v1/config", headers={"Authorization": header})

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert list(answer.json()) == ["errors"]


def test_a_valid_secret_under_another_scheme_is_rejected() -> None:
    token = services.create_token(name="ci", scope=TokenScope.READ, created_by="ada", reason="x")

    answer = Client().get("/v1/config", headers={"Authorization": f"Basic {token.secret}"})

    assert answer.status_code == 401


def test_wrong_tokens_are_rate_limited_and_valid_ones_are_not() -> None:
    good = bearer(TokenScope.READ)
    wrong = Client(headers={"Authorization": "Bearer wrong"})

    statuses = [wrong.get("/v1/config").status_code for _ in range(authentication.FAILURES_MAX + 2)]

    assert statuses == [401] * authentication.FAILURES_MAX + [429] * 2
    assert good.get("/v1/config").status_code == 200
    elsewhere = wrong.get("/v1/config", REMOTE_ADDR="10.1.2.3")
    assert elsewhere.status_code == 401


@pytest.mark.parametrize("name", ["", "With Space", "x" * 81, "-a", "Ada"])
def test_a_name_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="cannot be used"):
        services.create_token(name=name, scope=TokenScope.READ, created_by="ada", reason="x")


def test_the_command_creates_lists_and_revokes_tokens() -> None:
    secret = printed("create", "ci", "--scope", "act").strip()

    assert Client(headers={"Authorization": f"Bearer {secret}"}).get("/v1/jobs").status_code == 200
    assert "ci  act  last used 20" in printed("list")
    printed("revoke", "ci", "--reason", "unused")
    assert "ci  act  revoked by" in printed("list")
    with pytest.raises(CommandError, match="no token 'ci' to revoke; in use: none"):
        printed("revoke", "ci", "--reason", "unused")


def test_the_command_creates_a_token_that_expires() -> None:
    printed("create", "ci", "--days", "7")

    expires_at = queries.tokens()[0].expires_at
    assert expires_at is not None
    assert timedelta(days=6) < expires_at - timezone.now() < timedelta(days=8)
    assert f"expires {expires_at:%Y-%m-%d %H:%M} UTC" in printed("list")


@pytest.mark.parametrize(
    ("words", "days"), [((), 90), (("--never-expires",), None)], ids=["by itself", "when asked"]
)
def test_a_token_expires_after_90_days_unless_never_expires_is_given(
    words: tuple[str, ...], days: int | None
) -> None:
    printed("create", "ci", *words)

    expires_at = queries.tokens()[0].expires_at
    assert expires_at is None if days is None else (expires_at - timezone.now()).days == days - 1


def printed(*words: str) -> str:
    out = StringIO()
    call_command("api_token", *words, stdout=out)
    return out.getvalue()
