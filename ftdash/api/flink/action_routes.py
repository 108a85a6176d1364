"""Flink's addresses that act on jobs: each stores a request, whose progress a client then polls.

They offer only what an administrator may do on the pages; the request's row names caller and
interface. The id of a request that a client polls is the trigger id: 32 hexadecimal digits, which
the client may choose. A failed operation has status COMPLETED, with the cause inside.

Like Flink's server, these routes read request bodies leniently: they ignore unknown fields and use
defaults for missing ones.

Source: Flink 2.3, `rest.messages.job.savepoints`, `.checkpoints` and `rest.handler.async`.
"""

import uuid
from collections.abc import Callable, Collection
from typing import get_args

import msgspec

from ftdash.accounts.authentication import check_may_act_by_get
from ftdash.api.flink.http import ASKED, FlinkCall, Problem, Reply, check_id, job_of
from ftdash.api.flink.names import serialized_throwable
from ftdash.api.flink.shapes import Kebab, Status
from ftdash.jobs.answers import RequestView, ShownState
from ftdash.jobs.models import RequestPhase
from ftdash.points.services import restore as point_services
from ftdash.points.services.disposal import written_by
from ftdash.requests import services
from ftdash.runs.queries import pipelines as queries
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    Command,
    DisposeSavepoint,
    RunCommand,
    SavepointCommand,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import SavepointFormat


class SavepointTrigger(Kebab, frozen=True, kw_only=True):
    target_directory: str | None = None
    cancel_job: bool | None = None
    format_type: str | None = msgspec.field(name="formatType", default=None)
    trigger_id: str | None = msgspec.field(name="triggerId", default=None)


class StopTrigger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target_directory: str | None = None
    drain: bool | None = None
    format_type: str | None = None
    trigger_id: str | None = None


class CheckpointTrigger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    checkpoint_type: str | None = None
    trigger_id: str | None = None


class Disposal(Kebab, frozen=True, kw_only=True):
    savepoint_path: str | None = None


class ClientHeartbeat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    expired_timestamp: int = 0


class Triggered(Kebab, frozen=True, kw_only=True):
    request_id: str


class Empty(Kebab, frozen=True, kw_only=True): ...


class FailureCause(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """`serialized_throwable` is the Java serialization of the exception, in base64."""

    class_: str = msgspec.field(name="class")
    stack_trace: str
    serialized_throwable: str


class SavepointLocation(Kebab, frozen=True, kw_only=True):
    location: str


class SavepointFailure(Kebab, frozen=True, kw_only=True):
    failure_cause: FailureCause


class CheckpointNumber(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    checkpoint_id: int


class CheckpointFailure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    failure_cause: FailureCause


Outcome = SavepointLocation | SavepointFailure | CheckpointNumber | CheckpointFailure | Empty


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an operation; failure is in the outcome, never in the status."""

    status: Status
    operation: Outcome | None


CAUSE_CLASS = "ftdash.RequestFailed"
IN_PROGRESS = Status(id="IN_PROGRESS")
COMPLETED = Status(id="COMPLETED")


def trigger_id(given: str | None) -> str:
    """Returns the client's trigger id, or a new one. Raises Problem if the client's is invalid."""
    if given is None:
        return uuid.uuid4().hex
    check_id("triggerId", given)
    return given


def request_of(
    trigger: str, commands: Collection[type[Command]], run_id: str | None
) -> RequestView:
    """Finds an operation of that run; None means one without a run. Raises Problem if none fits."""
    check_id("triggerid", trigger)
    found, kinds = queries.request(trigger), [command.kind for command in commands]
    if found is None or found.kind not in kinds or found.run_id != run_id:
        raise Problem(404, f"There is no operation with trigger id {trigger} here.")
    return found


def progress(
    request: RequestView,
    succeeded: Callable[[RequestView], Outcome | None],
    failed: Callable[[FailureCause], Outcome],
) -> Progress:
    """`succeeded` returns None if the request is over but has no result to show."""
    if request.is_open:
        return Progress(status=IN_PROGRESS, operation=None)
    is_success = request.phase is RequestPhase.SUCCEEDED
    outcome = succeeded(request) if is_success else None
    return Progress(status=COMPLETED, operation=outcome or failed(_cause(request)))


def _cause(request: RequestView) -> FailureCause:
    text = f"{request.label} of {request.pipeline} {request.phase_label}: {request.message}"
    return FailureCause(
        class_=CAUSE_CLASS,
        stack_trace=text,
        serialized_throwable=serialized_throwable(CAUSE_CLASS, text),
    )


REASON = "asked through Flink's REST interface"
SAVEPOINTS: tuple[type[Command], ...] = get_args(SavepointCommand)
_FILE_SCHEMES = ("file://", "file:")


def savepoint(call: FlinkCall, job: str) -> object:
    run, given = job_of(job), call.body(SavepointTrigger)
    _check_directory(run, given.target_directory)
    command = CancelWithSavepoint if given.cancel_job else TakeSavepoint
    return _ask(call, run, command(format=_format(given.format_type)), given.trigger_id)


def stop(call: FlinkCall, job: str) -> object:
    run, given = job_of(job), call.body(StopTrigger)
    _check_directory(run, given.target_directory)
    command = StopWithSavepoint(format=_format(given.format_type), drain=bool(given.drain))
    return _ask(call, run, command, given.trigger_id)


def savepoint_progress(call: FlinkCall, job: str, trigger: str) -> object:
    request = request_of(trigger, SAVEPOINTS, job_of(job).run_id)
    return progress(request, _location, _savepoint_failure)


def checkpoint(call: FlinkCall, job: str) -> object:
    run, given = job_of(job), call.body(CheckpointTrigger)
    _check_checkpoint_type(run, given.checkpoint_type or "CONFIGURED")
    return _ask(call, run, TriggerCheckpoint(), given.trigger_id)


def checkpoint_progress(call: FlinkCall, job: str, trigger: str) -> object:
    request = request_of(trigger, (TriggerCheckpoint,), job_of(job).run_id)
    return progress(request, _number, _checkpoint_failure)


def cancel_application(call: FlinkCall, application: str) -> object:
    return _cancel(call, application)


def cancel(call: FlinkCall, job: str) -> object:
    check_id("jobid", job)
    match call.parameter("mode", "cancel"):
        case "cancel":
            return _cancel(call, job)
        case "stop":
            raise Problem(308, f"Stopping is done with a savepoint: POST to jobs/{job}/stop.")
        case mode:
            raise Problem(400, f"The parameter mode cannot be {mode!r}; it is cancel.")


def client_heartbeat(call: FlinkCall, job: str) -> object:
    """Stores nothing: no job depends on the client that started it."""
    job_of(job)
    call.body(ClientHeartbeat)
    return Reply(Empty(), ASKED)


def cancel_by_get(call: FlinkCall, job: str) -> object:
    check_may_act_by_get(call.caller, call.request)
    return _cancel(call, job)


def dispose(call: FlinkCall) -> object:
    path = call.body(Disposal).savepoint_path
    if not path:
        raise Problem(400, "Say which savepoint in the field savepoint-path.")
    path = _plain(path)
    request_id = point_services.dispose(
        pipeline=written_by(path),
        path=path,
        requester=call.caller.name,
        reason=REASON,
        request_id=trigger_id(None),
    )
    return Triggered(request_id=request_id)


def disposal_progress(call: FlinkCall, trigger: str) -> object:
    request = request_of(trigger, (DisposeSavepoint,), None)
    return progress(request, lambda _: Empty(), _savepoint_failure)


def _cancel(call: FlinkCall, job: str) -> Reply:
    """Cancelling a cancelled job is no error. Raises Problem if the job ended in another way."""
    run = job_of(job)
    if run.state.is_terminal and run.state is not ShownState.CANCELED:
        raise Problem(409, f"Job {job} is {run.state} already.")
    if not run.state.is_terminal:
        who, only_run = call.caller.name, run.run_id
        services.ask(run.pipeline, Cancel(), who=who, why=REASON, only_run=only_run)
    return Reply(Empty(), ASKED)


def _ask(call: FlinkCall, run: RunFacts, command: RunCommand, trigger: str | None) -> Reply:
    request_id = services.ask(
        run.pipeline,
        command,
        who=call.caller.name,
        why=REASON,
        request_id=trigger_id(trigger),
        only_run=run.run_id,
    )
    return Reply(Triggered(request_id=request_id), ASKED)


def _savepoint_failure(cause: FailureCause) -> SavepointFailure:
    return SavepointFailure(failure_cause=cause)


def _checkpoint_failure(cause: FailureCause) -> CheckpointFailure:
    return CheckpointFailure(failure_cause=cause)


def _location(request: RequestView) -> SavepointLocation | None:
    return SavepointLocation(location=request.path) if request.path else None


def _number(request: RequestView) -> CheckpointNumber | None:
    number = request.checkpoint_id
    return None if number is None else CheckpointNumber(checkpoint_id=number)


def _format(given: str | None) -> SavepointFormat:
    try:
        return SavepointFormat(given or SavepointFormat.CANONICAL)
    except ValueError as error:
        known = " or ".join(SavepointFormat)
        raise Problem(400, f"The field formatType cannot be {given!r}; give {known}.") from error


def _check_directory(run: RunFacts, given: str | None) -> None:
    own = run_queries.savepoint_directory(run.run_id)
    if given and _plain(given) != own:
        raise Problem(
            400,
            f"Savepoints of {run.pipeline} go to {own}; leave the directory away, or change"
            " execution.checkpointing.savepoint-dir.",
        )


def _check_checkpoint_type(run: RunFacts, given: str) -> None:
    if given not in ("CONFIGURED", "FULL", "INCREMENTAL"):
        raise Problem(
            400, f"The field checkpointType cannot be {given!r}; give CONFIGURED or FULL."
        )
    is_full = not parse_settings(run.settings).state.is_incremental
    if given == "INCREMENTAL" or (given == "FULL" and not is_full):
        raise Problem(
            400,
            f"A checkpoint of {run.pipeline} is {'full' if is_full else 'incremental'}, as"
            " execution.checkpointing.incremental says; take a savepoint for a whole copy.",
        )


def _plain(path: str) -> str:
    """The path in a file's address, without a slash at the end."""
    for scheme in _FILE_SCHEMES:
        path = path.removeprefix(scheme)
    return path.rstrip("/")
