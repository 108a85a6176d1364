"""Addresses that act, one for each action. Each answers 202 with the request to follow."""

from ninja import Status

from ftdash.api.own import shapes
from ftdash.api.own.door import Entered, api
from ftdash.api.own.shapes import InPath
from ftdash.audits import services as audits
from ftdash.checkpoints.queries import guarantee
from ftdash.checkpoints.queries.guarantee import AuditView
from ftdash.gameday import queries as game_day_queries
from ftdash.gameday import services as game_day_services
from ftdash.gameday.queries import GameDayView
from ftdash.jobs.answers import RequestView
from ftdash.jobs.validation import check_declared, package_store
from ftdash.points.services import disposal
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore, newest_point
from ftdash.requests import services
from ftdash.runs.queries import pipelines as queries
from ftdash.upgrades import services as upgrade_services
from pipelines.domain.commands import (
    AllowFaults,
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    KillSlot,
    RetryNow,
    RunCommand,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
    UndoStart,
)
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import RequestId

ASKED = 202
RequestAnswer = Status[RequestView]


@api.post("/pipelines", response={ASKED: RequestView})
def start(request: Entered, body: shapes.StartBody) -> RequestAnswer:
    """Create or change the pipeline, and start a run of it from the beginning.

    If it has a recovery point, `confirm` has to be its name: a start leaves state and output
    behind.
    """
    check_declared(body.flow)
    is_confirmed = body.confirm == body.name
    services.check_start_over(body.name, is_confirmed=is_confirmed, request_id=body.request_id)
    return _stored(
        services.submit_pipeline(
            name=body.name,
            flow=body.flow,
            parallelism=body.parallelism,
            max_parallelism=body.max_parallelism,
            parameters=body.parameters,
            settings=body.settings,
            allows_faults=body.allows_faults,
            requester=request.auth.name,
            reason=body.reason,
            request_id=body.request_id,
        )
    )


@api.post("/pipelines/{name}/checkpoints", response={ASKED: RequestView})
def take_checkpoint(request: Entered, name: InPath, body: shapes.CommandBody) -> RequestAnswer:
    return _ask(request, name, body, TriggerCheckpoint())


@api.post("/pipelines/{name}/savepoints", response={ASKED: RequestView})
def take_savepoint(request: Entered, name: InPath, body: shapes.SavepointBody) -> RequestAnswer:
    return _ask(request, name, body, TakeSavepoint(format=body.format, label=body.label))


@api.post("/pipelines/{name}/stop", response={ASKED: RequestView})
def stop(request: Entered, name: InPath, body: shapes.StopBody) -> RequestAnswer:
    """Stop with a savepoint."""
    command = StopWithSavepoint(format=body.format, label=body.label, drain=body.drain)
    return _ask(request, name, body, command)


@api.post("/pipelines/{name}/cancel", response={ASKED: RequestView})
def cancel(request: Entered, name: InPath, body: shapes.CancelBody) -> RequestAnswer:
    if not body.with_savepoint:
        return _ask(request, name, body, Cancel())
    command = CancelWithSavepoint(format=body.format, label=body.label)
    return _ask(request, name, body, command)


@api.post("/pipelines/{name}/settings", response={ASKED: RequestView})
def change_settings(request: Entered, name: InPath, body: shapes.SettingsBody) -> RequestAnswer:
    """Change settings of the newest run while it runs."""
    return _ask(request, name, body, ChangeSettings(settings=body.settings))


@api.post("/pipelines/{name}/retry", response={ASKED: RequestView})
def retry_now(request: Entered, name: InPath, body: shapes.CommandBody) -> RequestAnswer:
    """Start the attempt that waits for its restart delay now."""
    return _ask(request, name, body, RetryNow())


@api.post("/pipelines/{name}/undo-start", response={ASKED: RequestView})
def undo_start(request: Entered, name: InPath, body: shapes.CommandBody) -> RequestAnswer:
    """End a run that started over, and put back the output that its start set aside.

    This is possible only while the run has committed nothing.
    """
    return _ask(request, name, body, UndoStart())


@api.post("/pipelines/{name}/faults", response={ASKED: RequestView})
def kill_slot(request: Entered, name: InPath, body: shapes.KillBody) -> RequestAnswer:
    """Kill a slot on purpose, if the pipeline allows it."""
    return _ask(request, name, body, KillSlot(slot=body.slot, moment=body.moment))


@api.post("/pipelines/{name}/allowed-faults", response={ASKED: RequestView})
def allow_faults(request: Entered, name: InPath, body: shapes.FaultsBody) -> RequestAnswer:
    """Allow faults on purpose, or forbid them."""
    return _ask(request, name, body, AllowFaults(allowed=body.is_allowed))


@api.post("/pipelines/{name}/game-days", response={ASKED: GameDayView})
def start_game_day(request: Entered, name: InPath, body: shapes.GameDayBody) -> Status[GameDayView]:
    """Start a game day: a fault on purpose that is measured and proven. Follow it under its key.

    Repeating the same `request_id` returns the same game day.
    """
    key = game_day_services.start_game_day(
        pipeline=name,
        fault=body.fault,
        slot=body.slot,
        requester=request.auth.name,
        reason=body.reason,
        asked_id=body.request_id,
    )
    found = game_day_queries.game_day(key)
    if found is None:
        raise InvariantViolated("what was stored can be read")
    return Status(ASKED, found)


@api.post("/pipelines/{name}/upgrade", response={ASKED: RequestView})
def upgrade(request: Entered, name: InPath, body: shapes.UpgradeBody) -> RequestAnswer:
    """Check an added package, stop with a savepoint, and continue with the package.

    If that fails, the upgrade goes back by itself. To go back later, upgrade to the previous
    package.
    """
    return _stored(
        upgrade_services.upgrade(
            pipeline=name,
            code=package_store().known(body.package),
            requester=request.auth.name,
            reason=body.reason,
            allow_non_restored_state=body.allow_non_restored_state,
            request_id=body.request_id,
        )
    )


@api.post("/pipelines/{name}/restore", response={ASKED: RequestView})
def restore(request: Entered, name: InPath, body: shapes.RestoreBody) -> RequestAnswer:
    """Start a new run from a recovery point, of this or another pipeline."""
    return _stored(
        point_services.restore(
            Restore(
                pipeline=name,
                path=body.path,
                parallelism=body.parallelism,
                parameters=body.parameters,
                settings=body.settings,
                renamed=body.renamed,
                accepted_gaps=body.accepted_gaps,
                allow_non_restored_state=body.allow_non_restored_state,
                reads_files=body.reads_files,
            ),
            claim_mode=body.claim_mode,
            requester=request.auth.name,
            reason=body.reason,
            request_id=body.request_id,
        )
    )


@api.post("/pipelines/{name}/replay-quarantine", response={ASKED: RequestView})
def replay_quarantine(request: Entered, name: InPath, body: shapes.ReplayBody) -> RequestAnswer:
    """Start a new run that also passes the quarantined records to its operators, once."""
    return _stored(
        point_services.restore(
            Restore(
                pipeline=name,
                path=body.path or newest_point(name),
                parallelism=body.parallelism,
                reads_files=body.reads_files,
                replays=body.sources,
            ),
            requester=request.auth.name,
            reason=body.reason,
            request_id=body.request_id,
        )
    )


@api.post("/pipelines/{name}/dispose", response={ASKED: RequestView})
def dispose(request: Entered, name: InPath, body: shapes.DisposalBody) -> RequestAnswer:
    """Delete the files of a savepoint permanently."""
    return _stored(
        point_services.dispose(
            pipeline=name,
            path=body.path,
            requester=request.auth.name,
            reason=body.reason,
            request_id=body.request_id,
        )
    )


@api.post("/pipelines/{name}/savepoint-labels", response={ASKED: RequestView})
def label_savepoint(request: Entered, name: InPath, body: shapes.LabelBody) -> RequestAnswer:
    """Give a savepoint another label; an empty label removes it."""
    return _stored(
        disposal.label_savepoint(
            pipeline=name,
            path=body.path,
            label=body.label,
            requester=request.auth.name,
            reason=body.reason,
            request_id=body.request_id,
        )
    )


@api.post("/pipelines/{name}/audits", response={ASKED: list[AuditView]})
def audit(request: Entered, name: InPath) -> Status[list[AuditView]]:
    """Read the output of the newest run again; the answer lists this audit first."""
    audits.ask(name, request.auth.name)
    return Status(ASKED, guarantee.audits(name, 1))


def _ask(
    request: Entered, name: str, body: shapes.CommandBody, command: RunCommand | AllowFaults
) -> RequestAnswer:
    who, request_id = request.auth.name, body.request_id
    return _stored(services.ask(name, command, who=who, why=body.reason, request_id=request_id))


def _stored(request_id: RequestId) -> RequestAnswer:
    found = queries.request(request_id)
    if found is None:
        raise InvariantViolated("a request that was stored is found")
    return Status(ASKED, found)
