"""Log lines of the control plane as JSON, each with the request that it belongs to.

Web server, worker, beat and projector write lines for people by default, and one object of JSON a
line with FTDASH_LOG_JSON=1 or `ftdash serve NAME --json`. A request keeps the id that the proxy
sent in `X-Request-ID`, or gets one; the answer has it too. The errands that the request gives to
the worker carry the id, too. Secrets are masked.
"""

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from celery import signals
from django.http import HttpRequest, HttpResponseBase

from ftdash.telemetry import report_errors, request_span
from pipelines.domain.texts import masked

HEADER = "X-Request-ID"
IN_META = "ftdash.request"
"""The entry of `request.META` with the id; Django logs an error after the middleware."""

IN_MESSAGES = "ftdash_request"
"""The header of a Celery message that contains the id of the request that sent the message."""

_VALID = re.compile(r"[A-Za-z0-9._-]{8,64}")
_request: ContextVar[str] = ContextVar("request", default="")
requests_log = logging.getLogger("ftdash.requests")


class JsonLines(logging.Formatter):
    """`request` is absent outside of requests; `trace` is the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        trace = record.exc_text or ""
        if record.exc_info and not trace:
            trace = self.formatException(record.exc_info)
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": masked(record.getMessage()),
            "process": _process_name(),
            "pid": record.process,
            "request": _request.get() or _id_in(record),
            "trace": masked(trace),
            **getattr(record, "facts", {}),
        }
        return json.dumps({key: value for key, value in said.items() if value != ""})


def _id_in(record: logging.LogRecord) -> str:
    """Returns the id of the request that Django attached to its record, or an empty string."""
    request = getattr(record, "request", None)
    return str(request.META.get(IN_META, "")) if isinstance(request, HttpRequest) else ""


def _process_name() -> str:
    """Returns `web`, `worker`, ...: the first word of the command line that names the process."""
    words = [Path(word).name for word in sys.argv]
    if "uvicorn" in words[0] or "uvicorn" in sys.orig_argv:
        return "web"
    return next((word for word in words[1:] if word.isalpha()), words[0])


def named_request(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware. Logs each answer at INFO; the query is left out, because it may hold a secret."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        given = request.headers.get(HEADER, "")
        name = given if _VALID.fullmatch(given) else uuid.uuid4().hex
        request.META[IN_META] = name
        token = _request.set(name)
        began = time.monotonic()
        try:
            with request_span(str(request.method), name) as said:
                response = get_response(request)
                match = request.resolver_match  # None: the path matches no route
                said |= {"route": match.route if match else "", "status": response.status_code}
            facts = {
                "method": request.method,
                "path": request.path,
                "status": response.status_code,
                "ms": round((time.monotonic() - began) * 1000, 1),
                "client": request.META.get("REMOTE_ADDR", ""),
            }
            requests_log.info("%s %s", request.method, request.path, extra={"facts": facts})
        finally:
            _request.reset(token)
        response.headers[HEADER] = name
        return response

    return answer


report_errors()


@signals.before_task_publish.connect
def _send_along(headers: dict[str, Any] | None = None, **_: object) -> None:
    if headers is not None and _request.get():
        headers[IN_MESSAGES] = _request.get()


@signals.task_prerun.connect
def _take_over(task: Any = None, **_: object) -> None:
    _request.set(task.request.get(IN_MESSAGES) or "")


@signals.task_postrun.connect
def _leave(**_: object) -> None:
    _request.set("")
