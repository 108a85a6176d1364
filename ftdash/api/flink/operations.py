"""Reports how far a request has come, as Flink reports asynchronous operations.

A request's id is the trigger id if the client chose one, or if Flink's client is to poll for it: 32
hexadecimal digits. A failed operation has status COMPLETED, with the cause inside.
"""

import uuid
from collections.abc import Callable, Collection

from ftdash.api.flink import shapes_actions as shapes
from ftdash.api.flink.http import Problem, check_id
from ftdash.api.flink.shapes_jobs import Status
from ftdash.api.flink.throwable import serialized_throwable
from ftdash.jobs.answers import RequestView
from ftdash.jobs.models import RequestKind, RequestPhase
from ftdash.runs.queries import pipelines as queries

CAUSE_CLASS = "ftdash.RequestFailed"
IN_PROGRESS = Status(id="IN_PROGRESS")
COMPLETED = Status(id="COMPLETED")


def trigger_id(given: str | None) -> str:
    """Raises Problem if the client chose an invalid id."""
    if given is None:
        return uuid.uuid4().hex
    check_id("triggerId", given)
    return given


def request_of(trigger: str, kinds: Collection[RequestKind], run_id: str | None) -> RequestView:
    """Raises Problem if that run (None: no run) has no such operation."""
    check_id("triggerid", trigger)
    found = queries.request(trigger)
    if found is None or found.kind not in kinds or found.run_id != run_id:
        raise Problem(404, f"There is no operation with trigger id {trigger} here.")
    return found


def progress(
    request: RequestView,
    succeeded: Callable[[RequestView], shapes.Outcome | None],
    failed: Callable[[shapes.FailureCause], shapes.Outcome],
) -> shapes.Progress:
    """`succeeded` returns None if the request is over but has no result to show."""
    if request.is_open:
        return shapes.Progress(status=IN_PROGRESS, operation=None)
    is_success = request.phase is RequestPhase.SUCCEEDED
    outcome = succeeded(request) if is_success else None
    return shapes.Progress(status=COMPLETED, operation=outcome or failed(_cause(request)))


def _cause(request: RequestView) -> shapes.FailureCause:
    text = f"{request.label} of {request.pipeline} {request.phase_label}: {request.message}"
    return shapes.FailureCause(
        class_=CAUSE_CLASS,
        stack_trace=text,
        serialized_throwable=serialized_throwable(CAUSE_CLASS, text),
    )
