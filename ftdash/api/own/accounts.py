"""Addresses of people, tokens and the log of settings; who may come in is changed in person only.

What is changed is changed when it is answered, each with 200. A secret is in the answer that makes
it and in no other: asked for again, a one-time password is another one, and the older one is void.
"""

from django.http import HttpRequest

from ftdash.accounts import people, queries, services
from ftdash.accounts.people import NewPassword
from ftdash.accounts.queries import AdminActionView, PersonView, TokenView
from ftdash.accounts.services import NewToken
from ftdash.api.own import settings_shapes as shapes
from ftdash.api.own.door import IN_PERSON, Entered, api, known
from ftdash.api.own.settings_shapes import PersonInPath
from ftdash.api.own.shapes import Changing, InPath, Limit


@api.get("/tokens", response=list[TokenView])
def api_tokens(request: HttpRequest) -> list[TokenView]:
    """Names and scopes; a secret is known to its owner alone."""
    return queries.tokens()


@api.get("/people", response=list[PersonView])
def all_people(request: HttpRequest) -> list[PersonView]:
    """Who may sign in, with which role; who was shut out last."""
    return queries.people()


@api.get("/settings/log", response=list[AdminActionView])
def settings_log(request: HttpRequest, limit: Limit = 50) -> list[AdminActionView]:
    """What was changed beside pipelines, newest first."""
    return queries.admin_actions(limit)


@api.post("/tokens", response=NewToken, **IN_PERSON)
def make_token(request: Entered, asked: shapes.MakingToken) -> NewToken:
    """`secret` is in this answer only."""
    return services.create_token(
        name=asked.name,
        scope=asked.scope,
        created_by=request.auth.name,
        reason=asked.reason,
        expires_at=asked.expires_at,
    )


@api.post("/tokens/{token}/revoke", response=TokenView, **IN_PERSON)
def revoke_token(request: Entered, token: InPath, asked: Changing) -> TokenView:
    """From now on it opens nothing; its name stays taken."""
    services.revoke_token(name=token, revoked_by=request.auth.name, reason=asked.reason)
    return known(queries.token(token), f"token {token!r}")


@api.post("/people", response=NewPassword, **IN_PERSON)
def invite(request: Entered, asked: shapes.Inviting) -> NewPassword:
    """The password opens once: who comes in with it has to choose one."""
    return people.invite(
        name=asked.name, role=asked.role, requester=request.auth.name, reason=asked.reason
    )


@api.post("/people/{person}/role", response=PersonView, **IN_PERSON)
def change_role(request: Entered, person: PersonInPath, asked: shapes.ChangingRole) -> PersonView:
    people.change_role(
        name=person, role=asked.role, requester=request.auth.name, reason=asked.reason
    )
    return _person(person)


@api.post("/people/{person}/password", response=NewPassword, **IN_PERSON)
def reset_password(request: Entered, person: PersonInPath, asked: Changing) -> NewPassword:
    """A new one-time password; it ends their sessions."""
    return people.reset_password(name=person, requester=request.auth.name, reason=asked.reason)


@api.post("/people/{person}/deactivate", response=PersonView, **IN_PERSON)
def deactivate(request: Entered, person: PersonInPath, asked: Changing) -> PersonView:
    """Shut out at once, sessions included; tokens that they made keep working."""
    people.deactivate(name=person, requester=request.auth.name, reason=asked.reason)
    return _person(person)


@api.post("/people/{person}/reactivate", response=NewPassword, **IN_PERSON)
def reactivate(request: Entered, person: PersonInPath, asked: Changing) -> NewPassword:
    """With the role they had, and a new one-time password."""
    return people.reactivate(name=person, requester=request.auth.name, reason=asked.reason)


def _person(name: str) -> PersonView:
    return known(queries.person(name), f"person {name!r}")
