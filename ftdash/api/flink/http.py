"""The entry to Flink's routes: callers, request bodies, answers, and Flink's own web page.

A GET may carry a body (Flink's command line sends `{}`), which these routes ignore. They answer
only the methods that they offer, and only callers whom `ftdash.accounts.authentication` knows. All
errors have Flink's shape.

`page` serves the web page unmodified from a local directory to people who have signed in. The page
needs more browser rights than ours: styles in elements and attributes, and one handler in its head,
which the policy allows only by its digest.
"""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from csp.constants import NONE, SELF, UNSAFE_HASHES, UNSAFE_INLINE
from csp.decorators import csp_replace
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from django.views.static import serve

from ftdash.accounts.authentication import Caller, Refused, caller_of, check_may_act
from ftdash.api.flink.names import HEX_ID, run_id_of
from ftdash.api.flink.shapes import Errors
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.errors import Rejected

CONTENT_TYPE = "application/json; charset=UTF-8"
ASKED = 202
Body = TypeVar("Body", bound=msgspec.Struct)


class Problem(Exception):
    """Ends a request with an error of one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class FlinkCall:
    """One request from a caller who may make it."""

    request: HttpRequest
    caller: Caller

    def body(self, kind: type[Body]) -> Body:
        """Decodes the body; an empty one is `{}`. Raises Problem if it is not JSON of that kind."""
        try:
            return msgspec.json.decode(self.request.body or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, f"The request body cannot be read: {error}") from error

    def parameter(self, name: str, default: str = "") -> str:
        return self.request.GET.get(name, default)

    def values(self, name: str) -> list[str]:
        """Splits the value at its commas; a repeated parameter continues the list."""
        given = self.request.GET.getlist(name)
        return ",".join(given).split(",") if given else []

    def count(self, name: str, default: int) -> int:
        """Raises Problem unless the value is a whole number above zero."""
        text = self.parameter(name, str(default))
        if not text.isascii() or not text.isdigit() or not 0 < len(text) < 10 or int(text) == 0:
            raise Problem(400, f"The parameter {name} cannot be {text!r}; give a whole number.")
        return int(text)


@dataclass(frozen=True, slots=True)
class Reply:
    body: object
    status: int = 200


Handler = Callable[..., object]
"""Takes a `FlinkCall` and the parts of the address; returns a body of status 200, or a Reply."""


def route(**by_method: Handler) -> Callable[..., HttpResponse]:
    """The view of one address, with a handler for each method that it offers."""
    handlers = {method.upper(): handler for method, handler in by_method.items()}
    if "GET" in handlers:
        handlers["HEAD"] = handlers["GET"]

    @csrf_exempt
    @login_not_required
    @never_cache
    def view(request: HttpRequest, **names: str) -> HttpResponse:
        try:
            return _answer(request, handlers, names)
        except (Refused, Problem) as problem:
            return _problem(problem.status, str(problem))
        except Rejected as refusal:
            return _problem(400, str(refusal))

    return view


def _answer(
    request: HttpRequest, handlers: dict[str, Handler], names: dict[str, str]
) -> HttpResponse:
    call = FlinkCall(request, caller_of(request))
    handler = handlers.get(str(request.method))
    if handler is None:
        offered = ", ".join(sorted(handlers))
        raise Problem(405, f"{request.path} does not offer {request.method}; it offers {offered}.")
    if request.method not in ("GET", "HEAD"):
        check_may_act(call.caller, request)
    found = handler(call, **names)
    reply = found if isinstance(found, Reply) else Reply(found)
    return HttpResponse(msgspec.json.encode(reply.body), CONTENT_TYPE, reply.status)


def _problem(status: int, message: str) -> HttpResponse:
    answer = HttpResponse(msgspec.json.encode(Errors(errors=[message])), CONTENT_TYPE, status)
    if status == 401:
        answer["WWW-Authenticate"] = "Bearer"
    return answer


def job_of(job: str) -> RunFacts:
    """Raises Problem if no job has that id."""
    check_id("jobid", job)
    run_id = run_id_of(job)
    found = run_queries.run(run_id) if run_id else None
    if found is None:
        raise Problem(404, f"Job {job} not found")
    return found


def check_id(parameter: str, value: str, place: str = "path") -> None:
    if not HEX_ID.fullmatch(value):
        raise Problem(
            400,
            f"Cannot resolve {place} parameter ({parameter}) from value {value!r}: an id has 32"
            " lower-case hexadecimal digits.",
        )


def nothing_here(call: FlinkCall, **_: str) -> object:
    raise Problem(404, f"Unable to load requested file {call.request.path}.")


INDEX = "index.html"
LOAD_STYLES = "this.media='all'"
"""The handler that Angular writes into the page's head; it runs when the style sheet has loaded."""

_DIGEST = base64.b64encode(hashlib.sha256(LOAD_STYLES.encode()).digest()).decode()
POLICY = {
    "default-src": [NONE],
    "script-src": [SELF, UNSAFE_HASHES, f"'sha256-{_DIGEST}'"],
    "style-src": [SELF, UNSAFE_INLINE],
    "img-src": [SELF, "data:"],
    "font-src": [SELF, "data:"],
    "connect-src": [SELF],
    "worker-src": [SELF, "blob:"],
    "manifest-src": [SELF],
    "base-uri": [SELF],
    "form-action": [NONE],
    "frame-ancestors": [NONE],
}


@csp_replace(POLICY)  # type: ignore[untyped-decorator]
@require_safe
def page(request: HttpRequest, name: str = INDEX) -> HttpResponseBase:
    folder = settings.FLINK_WEB
    if not folder or not (Path(folder) / INDEX).is_file():
        raise Http404(
            "Flink's page is not here: unpack the folder web/ of flink-dist-2.3.0.jar, and let"
            " FTDASH_FLINK_WEB name it."
        )
    return serve(request, name, document_root=folder)
