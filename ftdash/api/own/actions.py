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
Asked = Status[RequestView]


@api.post("/pipelines", response={ASKED: RequestView})
def start(request: Entered, asked: shapes.AskingToStart) -> Asked:
    """Create or change the pipeline, and start a run of it from the beginning.

    If it has a recovery point, `confirm` has to be its name: a start leaves state and output
    behind.
    """
    check_declared(asked.flow)
    is_confirmed = asked.confirm == asked.name
    services.check_start_over(asked.name, is_confirmed=is_confirmed, request_id=asked.request_id)
    return _stored(
        services.submit_pipeline(
            name=asked.name,
            flow=asked.flow,
            parallelism=asked.parallelism,
            max_parallelism=asked.max_parallelism,
            parameters=asked.parameters,
            settings=asked.settings,
            allows_faults=asked.allows_faults,
            requester=request.auth.name,
            reason=asked.reason,
            request_id=asked.request_id,
        )
    )


@api.post("/pipelines/{name}/checkpoints", response={ASKED: RequestView})
def take_checkpoint(request: Entered, name: InPath, asked: shapes.Asking) -> Asked:
    return _ask(request, name, asked, TriggerCheckpoint())


@api.post("/pipelines/{name}/savepoints", response={ASKED: RequestView})
def take_savepoint(request: Entered, name: InPath, asked: shapes.AskingForSavepoint) -> Asked:
    return _ask(request, name, asked, TakeSavepoint(format=asked.format, label=asked.label))


@api.post("/pipelines/{name}/stop", response={ASKED: RequestView})
def stop(request: Entered, name: InPath, asked: shapes.AskingToStop) -> Asked:
    """Stop with a savepoint."""
    command = StopWithSavepoint(format=asked.format, label=asked.label, drain=asked.drain)
    return _ask(request, name, asked, command)


@api.post("/pipelines/{name}/cancel", response={ASKED: RequestView})
def cancel(request: Entered, name: InPath, asked: shapes.AskingToCancel) -> Asked:
    if not asked.with_savepoint:
        return _ask(request, name, asked, Cancel())
    command = CancelWithSavepoint(format=asked.format, label=asked.label)
    return _ask(request, name, asked, command)


@api.post("/pipelines/{name}/settings", response={ASKED: RequestView})
def change_settings(request: Entered, name: InPath, asked: shapes.AskingToChange) -> Asked:
    """Change settings of the newest run while it runs."""
    return _ask(request, name, asked, ChangeSettings(settings=asked.settings))


@api.post("/pipelines/{name}/retry", response={ASKED: RequestView})
def retry_now(request: Entered, name: InPath, asked: shapes.Asking) -> Asked:
    """Start the attempt that waits for its restart delay now."""
    return _ask(request, name, asked, RetryNow())


@api.post("/pipelines/{name}/undo-start", response={ASKED: RequestView})
def undo_start(request: Entered, name: InPath, asked: shapes.Asking) -> Asked:
    """End a run that started over, and put back the output that its start set aside.

    This is possible only while the run has committed nothing.
    """
    return _ask(request, name, asked, UndoStart())


@api.post("/pipelines/{name}/faults", response={ASKED: RequestView})
def kill_slot(request: Entered, name: InPath, asked: shapes.AskingToKill) -> Asked:
    """Kill a slot on purpose, if the pipeline allows it."""
    return _ask(request, name, asked, KillSlot(slot=asked.slot, moment=asked.moment))


@api.post("/pipelines/{name}/allowed-faults", response={ASKED: RequestView})
def allow_faults(request: Entered, name: InPath, asked: shapes.AskingToAllowFaults) -> Asked:
    """Allow faults on purpose, or forbid them."""
    return _ask(request, name, asked, AllowFaults(allowed=asked.is_allowed))


@api.post("/pipelines/{name}/game-days", response={ASKED: GameDayView})
def start_game_day(
    request: Entered, name: InPath, asked: shapes.AskingForGameDay
) -> Status[GameDayView]:
    """Start a game day: a fault on purpose that is measured and proven. Follow it under its key.

    Repeating the same `request_id` returns the same game day.
    """
    key = game_day_services.start_game_day(
        pipeline=name,
        fault=asked.fault,
        slot=asked.slot,
        requester=request.auth.name,
        reason=asked.reason,
        asked_id=asked.request_id,
    )
    found = game_day_queries.game_day(key)
    if found is None:
        raise InvariantViolated("what was stored can be read")
    return Status(ASKED, found)


@api.post("/pipelines/{name}/upgrade", response={ASKED: RequestView})
def upgrade(request: Entered, name: InPath, asked: shapes.AskingToUpgrade) -> Asked:
    """Check an added package, stop with a savepoint, and continue with the package.

    If that fails, the upgrade goes back by itself. To go back later, upgrade to the previous
    package.
    """
    return _stored(
        upgrade_services.upgrade(
            pipeline=name,
            code=package_store().known(asked.package),
            requester=request.auth.name,
            reason=asked.reason,
            allow_non_restored_state=asked.allow_non_restored_state,
            request_id=asked.request_id,
        )
    )


@api.post("/pipelines/{name}/restore", response={ASKED: RequestView})
def restore(request: Entered, name: InPath, asked: shapes.AskingToRestore) -> Asked:
    """Start a new run from a recovery point, of this or another pipeline."""
    return _stored(
        point_services.restore(
            Restore(
                pipeline=name,
                path=asked.path,
                parallelism=asked.parallelism,
                parameters=asked.parameters,
                settings=asked.settings,
                renamed=asked.renamed,
                accepted_gaps=asked.accepted_gaps,
                allow_non_restored_state=asked.allow_non_restored_state,
                reads_files=asked.reads_files,
            ),
            claim_mode=asked.claim_mode,
            requester=request.auth.name,
            reason=asked.reason,
            request_id=asked.request_id,
        )
    )


@api.post("/pipelines/{name}/replay-quarantine", response={ASKED: RequestView})
def replay_quarantine(request: Entered, name: InPath, asked: shapes.AskingToReplay) -> Asked:
    """Start a new run that also passes the quarantined records to its operators, once."""
    return _stored(
        point_services.restore(
            Restore(
                pipeline=name,
                path=asked.path or newest_point(name),
                parallelism=asked.parallelism,
                reads_files=asked.reads_files,
                replays=asked.sources,
            ),
            requester=request.auth.name,
            reason=asked.reason,
            request_id=asked.request_id,
        )
    )


@api.post("/pipelines/{name}/dispose", response={ASKED: RequestView})
def dispose(request: Entered, name: InPath, asked: shapes.AskingToDispose) -> Asked:
    """Delete the files of a savepoint permanently."""
    return _stored(
        point_services.dispose(
            pipeline=name,
            path=asked.path,
            requester=request.auth.name,
            reason=asked.reason,
            request_id=asked.request_id,
        )
    )


@api.post("/pipelines/{name}/savepoint-labels", response={ASKED: RequestView})
def label_savepoint(request: Entered, name: InPath, asked: shapes.AskingToLabel) -> Asked:
    """Give a savepoint another label; an empty label removes it."""
    return _stored(
        disposal.label_savepoint(
            pipeline=name,
            path=asked.path,
            label=asked.label,
            requester=request.auth.name,
            reason=asked.reason,
            request_id=asked.request_id,
        )
    )


@api.post("/pipelines/{name}/audits", response={ASKED: list[AuditView]})
def audit(request: Entered, name: InPath) -> Status[list[AuditView]]:
    """Read the output of the newest run again; the answer lists this audit first."""
    audits.ask(name, request.auth.name)
    return Status(ASKED, guarantee.audits(name, 1))


def _ask(
    request: Entered, name: str, asked: shapes.Asking, command: RunCommand | AllowFaults
) -> Asked:
    who, request_id = request.auth.name, asked.request_id
    return _stored(services.ask(name, command, who=who, why=asked.reason, request_id=request_id))


def _stored(request_id: RequestId) -> Asked:
    found = queries.request(request_id)
    if found is None:
        raise InvariantViolated("a request that was stored is found")
    return Status(ASKED, found)
