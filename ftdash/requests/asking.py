"""How a request is stored: its row, its run if it starts one, its delivery. Used by the services.

The caller may choose a request's id: repeating an id returns the same request, not a second one. A
stored request survives an outage of the broker: reconcile delivers it.

Moves a request on outside of the projector: from the phase that was read, or not at all.
"""

import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.conf import settings as configuration
from django.db import IntegrityError
from django.db.models import F
from django.utils import timezone

from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.models import Pipeline, Request, RequestPhase, Run
from ftdash.jobs.validation import check_reason
from ftdash.requests.offers import problem_with
from pipelines.bus.inbox import REQUEST_ID
from pipelines.domain.commands import Command
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.status import ClaimMode


@dataclass(frozen=True, slots=True)
class Question:
    """Who asks a pipeline for something, and why. `request_id` None: a new one is generated."""

    pipeline: str
    requester: str
    reason: str
    request_id: str | None = None

    def with_reason(self) -> "Question":
        """Raises Rejected if there is no reason."""
        return replace(self, reason=check_reason(self.reason))


def already_asked(question: Question, command: type[Command]) -> RequestId | None:
    """The request with that id, if there is one already.

    Raises Rejected if the id is invalid, or was used for a different request.
    """
    key = question.request_id
    if key is None:
        return None
    check_id(key)
    known = Request.objects.filter(request_id=key).select_related("pipeline").first()
    if known is None:
        return None
    if (known.kind, known.pipeline.name) != (command.kind, question.pipeline):
        raise Rejected(
            f"The request id {key!r} was used to ask {known.pipeline.name!r} for"
            f" {known.command.action!r}; choose another one."
        )
    return RequestId(known.request_id)


def check_id(key: str) -> None:
    """Raises Rejected if the id is invalid."""
    if not REQUEST_ID.fullmatch(key):
        raise Rejected(
            f"The request id {key!r} cannot be used; take up to 80 letters, digits, '.', '-' and"
            " '_', and begin with a letter or digit."
        )


def store_start(question: Question, command: Command, run: Run, message: str) -> RequestId:
    """`message` is shown until the run has started."""
    deadline_s = float(configuration.START_DEADLINE_S)
    request = store(question, command, run.pipeline, run, deadline_s, message)
    publish_on_commit(Errand.START_RUN, run.pk)
    return RequestId(request.request_id)


def store(
    question: Question,
    command: Command,
    pipeline: Pipeline,
    run: Run | None,
    deadline_s: float,
    message: str = "",
) -> Request:
    now = timezone.now()
    Pipeline.objects.filter(pk=pipeline.pk).update(version=F("version") + 1)
    request = Request.of(
        command,
        request_id=question.request_id or str(uuid.uuid4()),
        pipeline=pipeline,
        run=run,
        requester=question.requester,
        reason=question.reason,
        message=message,
        created_at=now,
        deadline_at=now + timedelta(seconds=deadline_s),
    )
    try:
        request.save(force_insert=True)
    except IntegrityError as error:
        raise Rejected(
            f"The request id {question.request_id!r} is in use by another request right now."
        ) from error
    return request


def new_run(
    pipeline: Pipeline,
    *,
    parallelism: int,
    parameters: dict[str, str],
    master: str | None,
    restored_from: str | None = None,
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM,
    allow_non_restored_state: bool = False,
    first_checkpoint_id: int = 1,
    parent: Run | None = None,
    replayed_sources: Sequence[str] = (),
) -> Run:
    newest = pipeline.runs.order_by("-number").first()
    number = newest.number + 1 if newest else 1
    try:
        return Run.objects.create(
            pipeline=pipeline,
            # The number is for people; the rest separates the files of a new database from an old
            # one's.
            run_id=f"{number:04d}-{secrets.token_hex(3)}",
            number=number,
            parallelism=parallelism,
            max_parallelism=pipeline.max_parallelism,
            master=master or f"local[{parallelism}]",
            parameters=parameters,
            settings=pipeline.settings,
            restored_from=restored_from,
            claim_mode=claim_mode.value,
            allow_non_restored_state=allow_non_restored_state,
            first_checkpoint_id=first_checkpoint_id,
            parent=parent,
            replayed_sources=list(replayed_sources),
            created_at=timezone.now(),
        )
    except IntegrityError as error:
        raise Rejected(
            f"{pipeline.name} has just been started by another person; look at its page."
        ) from error


def pipeline_named(name: str) -> Pipeline:
    row = Pipeline.objects.filter(name=name).first()
    if row is None:
        known = ", ".join(Pipeline.objects.values_list("name", flat=True))
        hint = f"there is {known}" if known else "none was submitted yet"
        raise Rejected(f"There is no pipeline {name!r}; {hint}.")
    return row


def check_possible(command: type[Command], pipeline: Pipeline) -> Run | None:
    """Returns the newest run. Raises Rejected if the request is not possible now."""
    run = pipeline.runs.order_by("-number").first()
    if problem := problem_with(command, pipeline, run):
        raise Rejected(problem)
    return run


def end_request(request: Request, phase: RequestPhase, message: str, at: datetime) -> None:
    """Sets its one terminal phase, unless it has one by now."""
    move_request(request, phase, message=message, ended_at=at)


def move_request(request: Request, phase: RequestPhase, **columns: object) -> None:
    """Only from the phase that was read: the projector may have moved it since."""
    unchanged = Request.objects.filter(pk=request.pk, phase=request.phase)
    if unchanged.update(phase=phase, **columns):
        Pipeline.objects.filter(pk=request.pipeline_id).update(version=F("version") + 1)
