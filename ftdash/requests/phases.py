"""Moves a request on outside of the projector: from the phase that was read, or not at all."""

from datetime import datetime

from django.db.models import F

from ftdash.jobs.models import Pipeline, Request, RequestPhase


def end_request(request: Request, phase: RequestPhase, message: str, at: datetime) -> None:
    """Sets its one terminal phase, unless it has one by now."""
    move_request(request, phase, message=message, ended_at=at)


def move_request(request: Request, phase: RequestPhase, **columns: object) -> None:
    """Only from the phase that was read: the projector may have moved it since."""
    unchanged = Request.objects.filter(pk=request.pk, phase=request.phase)
    if unchanged.update(phase=phase, **columns):
        Pipeline.objects.filter(pk=request.pipeline_id).update(version=F("version") + 1)
