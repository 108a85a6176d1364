"""The API object: the callers that it admits, the form of its errors, and its description."""

from typing import Any, TypeVar

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.views.decorators.cache import never_cache
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from ftdash.accounts.authentication import (
    Caller,
    Refused,
    caller_of,
    check_in_person,
    check_may_act,
    check_may_configure,
    reporter_of,
)
from ftdash.accounts.models import TokenScope
from ftdash.accounts.services import Role
from ftdash.api.flink.http import route
from pipelines.domain.errors import InvariantViolated, Rejected

Found = TypeVar("Found")

SAFE = ("GET", "HEAD", "OPTIONS")
UNPROCESSABLE = 422


class Entered(HttpRequest):
    """A request from a caller who may make it."""

    auth: Caller


def enter(request: HttpRequest) -> Caller:
    """Admits a caller, or raises Refused. Methods that do not only read need the right to act."""
    caller = caller_of(request)
    if request.method not in SAFE:
        check_may_act(caller, request)
    return caller


def enter_to_configure(request: HttpRequest) -> Caller:
    """Admits a caller who may change alerts and retention. Raises Refused."""
    caller = caller_of(request)
    check_may_configure(caller, request)
    return caller


def enter_in_person(request: HttpRequest) -> Caller:
    """Admits a caller who may change people and tokens. Raises Refused."""
    caller = caller_of(request)
    check_in_person(caller, request)
    return caller


def enter_to_report(request: HttpRequest) -> Caller:
    """Admits listeners of queries. Raises Refused."""
    return reporter_of(request)


def _needing(scope: TokenScope | None, role: Role | None) -> list[dict[str, list[str]]]:
    """Returns the alternatives, a token or a session, as OpenAPI writes them. None excludes one."""
    by_token = [] if scope is None else [{"token": [scope.value]}]
    by_session = [] if role is None else [{"session": [role.value]}]
    return [*by_token, *by_session]


_READING = _needing(TokenScope.READ, Role.OPERATOR)
_ACTING = _needing(TokenScope.ACT, Role.ADMIN)
CONFIGURING: dict[str, Any] = {
    "auth": enter_to_configure,
    "openapi_extra": {"security": _needing(TokenScope.CONFIGURE, Role.ADMIN)},
}
"""For addresses of alerts and retention."""

IN_PERSON: dict[str, Any] = {
    "auth": enter_in_person,
    "openapi_extra": {"security": _needing(None, Role.ADMIN)},
}
"""For addresses of people and tokens."""

REPORTING: dict[str, Any] = {
    "auth": enter_to_report,
    "openapi_extra": {"security": _needing(TokenScope.LISTEN, None)},
}
"""For the address of listeners."""

api = NinjaAPI(
    title="ftdash",
    version="1",
    description="Read pipelines, checkpoints and watched streams, and ask for actions on them.",
    auth=enter,
    docs_url=None,
    openapi_url=None,
    urls_namespace="api",
)


def _answer(request: HttpRequest, status: int, errors: list[str]) -> HttpResponse:
    answer = api.create_response(request, {"errors": errors}, status=status)
    if status == 401:
        answer["WWW-Authenticate"] = "Bearer"
    return answer


@api.exception_handler(Refused)
def _on_refused(request: HttpRequest, problem: Refused) -> HttpResponse:
    return _answer(request, problem.status, [str(problem)])


@api.exception_handler(Rejected)
def _on_rejected(request: HttpRequest, problem: Rejected) -> HttpResponse:
    return _answer(request, UNPROCESSABLE, [str(problem)])


@api.exception_handler(HttpError)
def _on_http_error(request: HttpRequest, problem: HttpError) -> HttpResponse:
    return _answer(request, problem.status_code, [problem.message])


@api.exception_handler(ValidationError)
def _on_invalid(request: HttpRequest, problem: ValidationError) -> HttpResponse:
    """Each error, with its place: "body.reason: Field required"."""
    return _answer(request, UNPROCESSABLE, [_sentence(each) for each in problem.errors])


def _sentence(error: dict[str, Any]) -> str:
    source, *names = (str(part) for part in error["loc"])
    if source == "body":
        del names[:1]  # of our parameter
    return f"{'.'.join((source, *names))}: {error['msg']}"


def known(found: Found | None, what: str) -> Found:
    """Returns `found`; raises HttpError (404) if it is None."""
    if found is None:
        raise HttpError(404, f"There is no {what}.")
    return found


def patterns() -> list[URLPattern]:
    """The addresses. The sign-in middleware leaves them to `enter`."""
    opened = [path("openapi.json", route(get=_description), name="openapi")]
    for pattern in api.urls[0]:
        if not isinstance(pattern, URLPattern):
            raise InvariantViolated("the API has addresses, and no parts with their own")
        if pattern.name == "api-root":  # it serves nothing
            continue
        pattern.callback = login_not_required(never_cache(pattern.callback))
        opened.append(pattern)
    return opened


def description() -> dict[str, Any]:
    """The OpenAPI description, including who may call each address."""
    described = api.get_openapi_schema(path_prefix="/api/")
    described["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME},
    }
    for methods in described["paths"].values():
        for method, operation in methods.items():
            is_safe = method.upper() in SAFE
            operation.setdefault("security", _READING if is_safe else _ACTING)
    return described


def _description(*_: object) -> object:
    return description()
