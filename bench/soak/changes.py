"""Changes that a person makes: savepoints, and restores that change the pipeline."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.drill.staging import Staged
from bench.soak.fault_context import UNALIGNED, WHO, FaultContext, ended, path_of, request_and_wait
from bench.soak.flow import DOCUMENTS_FILES, VERSION, Code
from bench.soak.schedule import Fault
from ftdash.checkpoints.queries.checkpoints import recovery_points
from ftdash.points.services.restore import Restore, dispose, restore
from pipelines.domain.commands import StopWithSavepoint, TakeSavepoint
from pipelines.domain.errors import Rejected
from pipelines.domain.status import ClaimMode

LARGE = DOCUMENTS_FILES
"""The pipeline whose savepoints take a gigabyte each, so none of them may stay."""

PARALLELISMS = (1, 2, 3)
CHANGES = tuple(
    {
        "execution.checkpointing.interval": interval,
        UNALIGNED: unaligned,
    }
    for interval in ("500 ms", "1 s", "2 s")
    for unaligned in ("true", "false")
)
OF_POISONED = {"execution.poison-records.policy": "quarantine"}
"""Settings of pipelines whose input may be poisoned. It needs aligned checkpoints."""


def savepoint(context: FaultContext) -> None:
    path = path_of(request_and_wait(context.staged, TakeSavepoint()))
    if context.staged.name == LARGE:
        context.staged.wait_runs(1)  # the run needs it until another checkpoint is complete
        _disposed(path)


def stop_and_restore(context: FaultContext) -> None:
    _restored(context)


def rescale(context: FaultContext) -> None:
    now = context.staged.run.parallelism
    _restored(context, parallelism=context.rng.choice([p for p in PARALLELISMS if p != now]))


def settings(context: FaultContext) -> None:
    _restored(context, settings=context.rng.choice(changes_of(context.staged.run.settings)))


def changes_of(now: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the changes of these settings that a run accepts."""
    others = [change for change in CHANGES if not change.items() <= now.items()]
    must_align = OF_POISONED.items() <= now.items()
    return [each for each in others if each[UNALIGNED] == "false" or not must_align]


def code(context: FaultContext) -> None:
    """Continues from a savepoint with the other version of the pipeline's code."""
    parameters = context.staged.run.parameters
    now, kind = Code(int(parameters[VERSION])), parameters["kind"]
    renamed = now.renamed_to(now.other, kind)
    _restored(context, parameters={VERSION: str(now.other.version)}, renamed=renamed)


CHANGES_MADE: Mapping[Fault, Callable[[FaultContext], None]] = {
    Fault.SAVEPOINT: savepoint,
    Fault.STOP_AND_RESTORE: stop_and_restore,
    Fault.RESCALE: rescale,
    Fault.SETTINGS: settings,
    Fault.CODE: code,
}


def go_on(staged: Staged) -> str:
    """Restores a run that ended unasked. Returns how it ended, or nothing if it still runs."""
    run = staged.run
    if not run.is_terminal:
        return ""
    said = f"{staged.name} ended as {run.status}: {run.reason}"
    newest = next((point for point in recovery_points(staged.name) if point.is_present), None)
    if newest is None:
        raise Rejected(f"{said} There is no point to go on from.")
    _start(staged, newest.path, ClaimMode.NO_CLAIM)
    return said


def drained(staged: Staged) -> None:
    """Drains the run: event time ends, so that every window fires, and then the run ends."""
    stop(staged, StopWithSavepoint(drain=True))


def stop(staged: Staged, command: StopWithSavepoint) -> str:
    """Stops the run with a savepoint, and returns the savepoint's path."""
    path = path_of(request_and_wait(staged, command))
    staged.wait(lambda run: run.is_terminal)
    return path


def _restored(context: FaultContext, **others: Any) -> None:
    """Stops the pipeline and restores it; `others` are the fields of `Restore` that change."""
    staged = context.staged
    is_large, claimed = staged.name == LARGE, staged.run.restored_from
    path = stop(staged, StopWithSavepoint())
    drawn = context.rng.choice((ClaimMode.NO_CLAIM, ClaimMode.CLAIM))
    _start(staged, path, ClaimMode.CLAIM if is_large else drawn, **others)
    # A claimed point stays if its run ends before enough checkpoints have replaced it.
    if is_large and claimed is not None and Path(claimed).exists():
        _disposed(claimed)


def _start(staged: Staged, path: str, claim_mode: ClaimMode, **others: Any) -> None:
    how = Restore(pipeline=staged.name, path=path, **others)
    restore(how, requester=WHO, reason="the soak", claim_mode=claim_mode)
    staged.wait(lambda run: run.status == "RUNNING" or run.is_terminal)


def _disposed(path: str) -> None:
    ended(dispose(pipeline=LARGE, path=path, requester=WHO, reason="the soak"))
