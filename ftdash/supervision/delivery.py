"""Brings requests to drivers, and ends those that had no answer in time.

A request goes into its run's inbox under its id, so delivering it twice is harmless.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from ftdash.errands import isolated
from ftdash.formats import age
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import OPEN_PHASES, Request, RequestPhase
from ftdash.points.services.disposal import dispose_of
from ftdash.requests.asking import end_request, move_request
from pipelines.bus.inbox import submit, withdraw
from pipelines.domain.commands import COMMANDS, STARTS, DisposeSavepoint, RunCommand
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import RequestId

_LATE = {
    RequestPhase.PENDING: "No worker delivered it within {patience}; it was withdrawn.",
    RequestPhase.DELIVERED: "The driver did not take it up within {patience}; it was withdrawn.",
    RequestPhase.ACCEPTED: "The driver did not finish it within {patience}; it may still end.",
}
_BY_STEPS = [kind for kind, command in COMMANDS.items() if command.ends_by_its_steps]
_START_LATE = "The pipeline was not running after {patience}; starting it goes on."


def deliver(request_key: int) -> None:
    """Put one request into its driver's inbox, whether the driver is up or not."""
    request = Request.objects.select_related("run__pipeline").filter(pk=request_key).first()
    if request is None or request.run is None or request.phase != RequestPhase.PENDING:
        return
    if request.run.is_terminal:
        why = f"The run ended first: {request.run.reason}"
        end_request(request, RequestPhase.FAILED, why, timezone.now())
        return
    command = request.command
    if not isinstance(command, RunCommand):
        raise InvariantViolated(f"a driver carries out {request.kind}")
    submit(run_directory(request.run), command)
    move_request(request, RequestPhase.DELIVERED, delivered_at=timezone.now())


def deliver_forgotten() -> None:
    """Delivers requests whose message the broker lost, or never got."""
    forgotten = timezone.now() - timedelta(seconds=settings.DELIVERY_GRACE_S)
    pending = Request.objects.filter(phase=RequestPhase.PENDING, created_at__lt=forgotten)
    for key, kind in pending.exclude(kind__in=[*STARTS, *_BY_STEPS]).values_list("pk", "kind"):
        carry_out = dispose_of if kind == DisposeSavepoint.kind else deliver
        with isolated(f"The delivery of request row {key}"):
            carry_out(key)


def end_overdue() -> None:
    """Gives requests past their deadline their one terminal phase, with the reason."""
    now = timezone.now()
    overdue = Request.objects.filter(phase__in=OPEN_PHASES, deadline_at__lt=now)
    for request in overdue.exclude(kind__in=_BY_STEPS).select_related("run__pipeline"):
        with isolated(f"The end of request {request.request_id}"):
            _end_overdue(request, now)


def _end_overdue(request: Request, now: datetime) -> None:
    is_start = request.kind in STARTS
    if request.run is not None and not is_start and request.phase != RequestPhase.ACCEPTED:
        withdraw(run_directory(request.run), RequestId(request.request_id))
    sentence = _START_LATE if is_start else _LATE[RequestPhase(request.phase)]
    patience = age((request.deadline_at - request.created_at) / timedelta(milliseconds=1))
    end_request(request, RequestPhase.FAILED, sentence.format(patience=patience), now)
