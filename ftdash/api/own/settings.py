"""Addresses of settings: people, tokens, the log, and how long history is kept.

Only a session may change people and tokens. A change is done when it is answered, with 200. A
secret is only in the answer that makes it: if you ask again for a one-time password, you get a new
one, and the older one is void. Before a choice about history you can ask what it would delete.
"""

from django.http import HttpRequest

from ftdash.accounts import queries, services
from ftdash.accounts.queries import AdminActionView, PersonView, TokenView
from ftdash.accounts.services import NewPassword, NewToken
from ftdash.api.own import shapes as shapes
from ftdash.api.own.door import CONFIGURING, IN_PERSON, Entered, api, known
from ftdash.api.own.shapes import Changing, InPath, Keeping, Limit, PersonInPath
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.retention import queries as kept_queries
from ftdash.retention.queries import Choice, KeptView


@api.get("/tokens", response=list[TokenView])
def api_tokens(request: HttpRequest) -> list[TokenView]:
    """Names and scopes; only its owner knows a token's secret."""
    return queries.tokens()


@api.get("/people", response=list[PersonView])
def all_people(request: HttpRequest) -> list[PersonView]:
    """People who may sign in, with their roles; deactivated ones last."""
    return queries.people()


@api.get("/settings/log", response=list[AdminActionView])
def settings_log(request: HttpRequest, limit: Limit = 50) -> list[AdminActionView]:
    """Changes other than to pipelines, newest first."""
    return queries.admin_actions(limit)


@api.post("/tokens", response=NewToken, **IN_PERSON)
def make_token(request: Entered, asked: shapes.MakingToken) -> NewToken:
    """`secret` is only in this answer."""
    return services.create_token(
        name=asked.name,
        scope=asked.scope,
        created_by=request.auth.name,
        reason=asked.reason,
        expires_at=asked.expires_at,
    )


@api.post("/tokens/{token}/revoke", response=TokenView, **IN_PERSON)
def revoke_token(request: Entered, token: InPath, asked: Changing) -> TokenView:
    """The token is invalid from now on; its name stays taken."""
    services.revoke_token(name=token, revoked_by=request.auth.name, reason=asked.reason)
    return known(queries.token(token), f"token {token!r}")


@api.post("/people", response=NewPassword, **IN_PERSON)
def invite(request: Entered, asked: shapes.Inviting) -> NewPassword:
    """The password works once: at the first sign-in its person has to choose one."""
    return services.invite(
        name=asked.name, role=asked.role, requester=request.auth.name, reason=asked.reason
    )


@api.post("/people/{person}/role", response=PersonView, **IN_PERSON)
def change_role(request: Entered, person: PersonInPath, asked: shapes.ChangingRole) -> PersonView:
    services.change_role(
        name=person, role=asked.role, requester=request.auth.name, reason=asked.reason
    )
    return _person(person)


@api.post("/people/{person}/password", response=NewPassword, **IN_PERSON)
def reset_password(request: Entered, person: PersonInPath, asked: Changing) -> NewPassword:
    """Gives a new one-time password, and ends their sessions."""
    return services.reset_password(name=person, requester=request.auth.name, reason=asked.reason)


@api.post("/people/{person}/deactivate", response=PersonView, **IN_PERSON)
def deactivate(request: Entered, person: PersonInPath, asked: Changing) -> PersonView:
    """Ends their access at once, sessions included; tokens that they made keep working."""
    services.deactivate(name=person, requester=request.auth.name, reason=asked.reason)
    return _person(person)


@api.post("/people/{person}/reactivate", response=NewPassword, **IN_PERSON)
def reactivate(request: Entered, person: PersonInPath, asked: Changing) -> NewPassword:
    """Restores access with the former role and a new one-time password."""
    return services.reactivate(name=person, requester=request.auth.name, reason=asked.reason)


def _person(name: str) -> PersonView:
    return known(queries.person(name), f"person {name!r}")


@api.get("/history", response=list[KeptView])
def history(request: HttpRequest) -> list[KeptView]:
    """Each kind of rows that are deleted with age, and how many rows it has."""
    return kept_queries.kept()


@api.get("/history/{kind}/choices", response=list[Choice])
def history_choices(request: HttpRequest, kind: Kind) -> list[Choice]:
    """The lengths to choose from, and how many rows each would delete now."""
    return kept_queries.choices_of(kind)


@api.post("/history/{kind}", response=KeptView, **CONFIGURING)
def keep_history(request: Entered, kind: Kind, asked: Keeping) -> KeptView:
    """Older rows are gone within minutes, permanently."""
    limits.change(kind=kind, keep=asked.keep, requester=request.auth.name, reason=asked.reason)
    return kept_queries.kept_of(kind)
