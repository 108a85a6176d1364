"""Converts the row of a request into the command for its driver."""

import msgspec

from ftdash.jobs.models import Request, RequestKind
from pipelines.domain.commands import (
    KILL_WITHIN_S,
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    DriverCommand,
    KillDriver,
    KillSlot,
    SlowSlot,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import RequestId
from pipelines.domain.status import DriverKillMoment, KillMoment, SavepointFormat

_PLAIN: dict[str, type[TriggerCheckpoint | Cancel]] = {
    RequestKind.CHECKPOINT: TriggerCheckpoint,
    RequestKind.CANCEL: Cancel,
}
_WITH_SAVEPOINT: dict[str, type[TakeSavepoint | StopWithSavepoint | CancelWithSavepoint]] = {
    RequestKind.SAVEPOINT: TakeSavepoint,
    RequestKind.STOP_WITH_SAVEPOINT: StopWithSavepoint,
    RequestKind.CANCEL_WITH_SAVEPOINT: CancelWithSavepoint,
}


def command_of(request: Request) -> DriverCommand:
    """Requests that start a run have no command: there is no driver yet."""
    request_id = RequestId(request.request_id)
    by, reason = request.requester, request.reason
    if request.kind == RequestKind.KILL_SLOT:
        return KillSlot(
            request_id=request_id,
            requested_by=by,
            reason=reason,
            slot=int(request.parameters["slot"]),
            moment=KillMoment(request.parameters["moment"]),
            within_s=_within_s(request),
        )
    if request.kind == RequestKind.SLOW_SLOT:
        numbers = {name: int(value) for name, value in request.parameters.items()}
        return SlowSlot(request_id=request_id, requested_by=by, reason=reason, **numbers)
    if request.kind == RequestKind.KILL_DRIVER:
        moment, slot = (request.parameters.get(name) for name in ("moment", "slot"))
        return KillDriver(
            request_id=request_id,
            requested_by=by,
            reason=reason,
            moment=DriverKillMoment(moment),
            within_s=_within_s(request),
            slot=None if slot is None else int(slot),
        )
    if request.kind == RequestKind.CHANGE_SETTINGS:
        return ChangeSettings(
            request_id=request_id, requested_by=by, reason=reason, settings=request.parameters
        )
    if request.kind in _WITH_SAVEPOINT:
        command = _WITH_SAVEPOINT[request.kind](
            request_id=request_id,
            requested_by=by,
            reason=reason,
            format=SavepointFormat(request.parameters.get("type", SavepointFormat.CANONICAL)),
        )
        if isinstance(command, StopWithSavepoint):
            return msgspec.structs.replace(command, drain="drain" in request.parameters)
        return command
    if request.kind not in _PLAIN:
        raise InvariantViolated(f"a request of kind {request.kind} has no command")
    return _PLAIN[request.kind](request_id=request_id, requested_by=by, reason=reason)


def _within_s(request: Request) -> float:
    """Rows older than this parameter lack it."""
    return float(request.parameters.get("within_s", KILL_WITHIN_S))
