"""The API object: who may enter, how errors look, and the description of all of it."""

from typing import Any, TypeVar

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
)
from ftdash.api.flink.http import route
from pipelines.domain.errors import InvariantViolated, Rejected

Found = TypeVar("Found")

SAFE = ("GET", "HEAD", "OPTIONS")
UNPROCESSABLE = 422


class Entered(HttpRequest):
    """A request by somebody who may make it."""

    auth: Caller


def enter(request: HttpRequest) -> Caller:
    """Raises Refused. Whatever is no reading needs the right to act."""
    caller = caller_of(request)
    if request.method not in SAFE:
        check_may_act(caller, request)
    return caller


def enter_to_configure(request: HttpRequest) -> Caller:
    """For alerts and retention. Raises Refused."""
    caller = caller_of(request)
    check_may_configure(caller, request)
    return caller


def enter_in_person(request: HttpRequest) -> Caller:
    """For people and tokens. Raises Refused."""
    caller = caller_of(request)
    check_in_person(caller, request)
    return caller


api = NinjaAPI(
    title="ftdash",
    version="1",
    description=__doc__,
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
    """Each thing that is wrong, with its place: "body.reason: Field required"."""
    return _answer(request, UNPROCESSABLE, [_sentence(each) for each in problem.errors])


def _sentence(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"{where}: {error['msg']}"


def known(found: Found | None, what: str) -> Found:
    """Raises HttpError (404) in the place of None."""
    if found is None:
        raise HttpError(404, f"There is no {what}.")
    return found


def patterns() -> list[URLPattern]:
    """The addresses. The middleware that asks people to sign in leaves them to `enter`."""
    opened = [path("openapi.json", route(get=_description), name="openapi")]
    for pattern in api.urls[0]:
        if not isinstance(pattern, URLPattern):
            raise InvariantViolated("the API has addresses, and no parts with their own")
        if pattern.name == "api-root":  # there is nothing
            continue
        pattern.callback = login_not_required(never_cache(pattern.callback))
        opened.append(pattern)
    return opened


def _description(*_: object) -> object:
    return api.get_openapi_schema(path_prefix="/api/")
