"""Stores requests, and decides which ones are possible on a pipeline now. Used by the services.

To store a request is to write its row, and the row of its run if it starts one, and to deliver it.
The caller may choose a request's id: repeating an id returns the same request, not a second one. A
stored request survives an outage of the broker: reconcile delivers it. Outside of the projector, a
request changes its phase only if it is still in the phase that was read.

The rules that offer an action on a page also refuse a request: services call `problem_with` before
they store one. This module does not decide who may act.

The audit log has an entry for each request, and for each one that a service refuses. The entry of a
stored request is part of the transaction that stores it.
"""

import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.conf import settings as configuration
from django.db import IntegrityError
from django.db.models import F
from django.utils import timezone

from ftdash.accounts.models import REFUSED_REQUEST
from ftdash.accounts.services import record_refusal, record_request
from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.answers import ActionOffer, RunView
from ftdash.jobs.models import DesiredState, Pipeline, Request, RequestPhase, Run, Upgrade
from ftdash.jobs.validation import check_reason
from pipelines.bus.inbox import REQUEST_ID
from pipelines.domain.commands import COMMANDS, Command, Needs, RequestKind
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.status import ClaimMode, JobStatus


def offers(
    pipeline: Pipeline, run: Run | None, view: RunView | None
) -> dict[RequestKind, ActionOffer]:
    """`view` is that of `run`, the newest."""
    upgrading = _problem_of_upgrade(pipeline)
    return {
        kind: _offer(command, pipeline, run, view, upgrading) for kind, command in COMMANDS.items()
    }


def problem_with(command: type[Command], pipeline: Pipeline, run: Run | None) -> str:
    """Returns why `command` is not possible now, in one sentence; empty if it is."""
    is_live = run is not None and not run.is_terminal
    if command.needs is Needs.NOTHING:
        return ""
    if command.needs is Needs.START_TO_UNDO:
        return _why_start_stays(pipeline, run)
    if command.needs is Needs.NO_LIVE_RUN:
        return f"{pipeline.name} has a run under way; stop or cancel it first." if is_live else ""
    if run is None or not is_live:
        return f"{pipeline.name} is not running{command.without_run}."
    if command.needs is Needs.RUNNING and run.desired == DesiredState.STOPPED:
        return f"{pipeline.name} is being stopped."
    if command.needs is Needs.RUNNING and run.status != JobStatus.RUNNING.value:
        return f"{pipeline.name} is {run.status}; this needs it to be RUNNING."
    if command.needs is Needs.WAITING and run.goes_on_at is None:
        return f"{pipeline.name} does not wait for a restart: it is {run.status}."
    if command.is_fault and not pipeline.allows_faults:
        return f"{pipeline.name} does not allow faults on purpose; an admin may allow them."
    return ""


def _why_start_stays(pipeline: Pipeline, run: Run | None) -> str:
    """Returns why the start of the newest run cannot be undone; empty if it can."""
    if run is None or run.restored_from is not None:
        return f"The newest run of {pipeline.name} did not start over: no start can be undone."
    if run.start_undone:
        return f"The start of run {run.number} of {pipeline.name} is undone already."
    if run.last_checkpoint_id is not None:
        return (
            f"Run {run.number} of {pipeline.name} has completed a checkpoint and committed output,"
            " so its start can no longer be undone; restore a point of an earlier run to go back."
        )
    if run.desired == DesiredState.STOPPED and not run.is_terminal:
        return f"{pipeline.name} is being stopped; undo the start of the run when it has ended."
    if not pipeline.runs.filter(number__lt=run.number, last_checkpoint_id__gt=0).exists():
        return f"No earlier run of {pipeline.name} has committed output: nothing can be put back."
    return ""


def _problem_of_upgrade(pipeline: Pipeline) -> str:
    """Returns why a command that waits for upgrades is not possible now; empty if it is."""
    if not Upgrade.objects.filter(pipeline=pipeline, ended_at=None).exists():
        return ""
    return (
        f"{pipeline.name} is being upgraded; wait until that has ended, or cancel its run to stop"
        " it."
    )


def _offer(
    command: type[Command],
    pipeline: Pipeline,
    run: Run | None,
    view: RunView | None,
    upgrading: str,
) -> ActionOffer:
    problem = problem_with(command, pipeline, run)
    problem = problem or (upgrading if command.waits_for_upgrade else "")
    consequence = "" if problem else _consequence(command, pipeline, view)
    return ActionOffer(command.kind, not problem, problem, consequence)


def _consequence(command: type[Command], pipeline: Pipeline, view: RunView | None) -> str:
    return command.consequence.format(
        pipeline=pipeline.name,
        parallelism=pipeline.parallelism,
        allows="allows" if pipeline.allows_faults else "does not allow",
        replay=_replay(view),
    )


def _replay(view: RunView | None) -> str:
    newest = view.last_checkpoint_id if view is not None else None
    since = f"checkpoint {newest}" if newest else "the start"
    if view is None or view.records_to_replay is None:
        return f"the records read since {since}"
    return f"about {view.records_to_replay:,} records read since {since}"


@dataclass(frozen=True, slots=True)
class Question:
    """The requester and reason of a request. If `request_id` is None, a new one is generated."""

    pipeline: str
    requester: str
    reason: str
    request_id: str | None = None

    def with_reason(self) -> "Question":
        """Raises Rejected if there is no reason."""
        return replace(self, reason=check_reason(self.reason))


@contextmanager
def refusals_logged(
    question: Question, command: type[Command], *, is_of_upgrade: bool = False
) -> Iterator[None]:
    """Logs a refusal by the block, after the transaction within has been rolled back.

    The steps of an upgrade are repeated, and its own row says why one was refused.
    """
    try:
        yield
    except Rejected as refusal:
        if is_of_upgrade:
            raise
        record_refusal(
            who=question.requester,
            what=REFUSED_REQUEST,
            subject=f"pipeline {question.pipeline}",
            detail=command.action,
            reason=question.reason,
            refusal=str(refusal),
        )
        raise


def already_asked(question: Question, command: type[Command]) -> RequestId | None:
    """Returns the request with that id, if there is one already.

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
    values = "".join(f", {name}={value}" for name, value in command.parameters.items())
    record_request(
        who=request.requester,
        pipeline=pipeline.name,
        request_id=request.request_id,
        command=f"{command.action}{values}",
        reason=request.reason,
    )
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
    renamed_uids: dict[str, str] | None = None,
    accepted_gaps: Sequence[str] = (),
    puts_back: bool = False,
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
            code=pipeline.code,
            replayed_sources=list(replayed_sources),
            renamed_uids=renamed_uids or {},
            accepted_gaps=list(accepted_gaps),
            puts_back=puts_back,
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


def check_possible(
    command: type[Command], pipeline: Pipeline, *, is_of_upgrade: bool = False
) -> Run | None:
    """Returns the newest run. Raises Rejected if the request is not possible now.

    `is_of_upgrade` means that an upgrade of the pipeline asks, which waits for no upgrade.
    """
    run = pipeline.runs.order_by("-number").first()
    if problem := problem_with(command, pipeline, run):
        raise Rejected(problem)
    waits = command.waits_for_upgrade and not is_of_upgrade
    if waits and (problem := _problem_of_upgrade(pipeline)):
        raise Rejected(problem)
    return run


def end_request(request: Request, phase: RequestPhase, message: str, at: datetime) -> None:
    """Sets its one terminal phase, unless it has one by now."""
    move_request(request, phase, message=message, ended_at=at)


def move_request(request: Request, phase: RequestPhase, **columns: object) -> None:
    """Changes the phase only if it is still as read: the projector may have changed it since."""
    unchanged = Request.objects.filter(pk=request.pk, phase=request.phase)
    if unchanged.update(phase=phase, **columns):
        Pipeline.objects.filter(pk=request.pipeline_id).update(version=F("version") + 1)
