"""The actions that are possible on a pipeline now, and their costs, in numbers.

The same rules refuse a request: services call `problem_with` before they store one. Does not decide
who may act.
"""

from ftdash.jobs.answers import ActionOffer, RunView
from ftdash.jobs.models import STARTS, DesiredState, Pipeline, RequestKind, Run
from pipelines.domain.status import JobStatus

OF_A_SAVEPOINT = (RequestKind.DISPOSE, RequestKind.LABEL)
NEED_RUNNING = (
    RequestKind.CHECKPOINT,
    RequestKind.SAVEPOINT,
    RequestKind.STOP_WITH_SAVEPOINT,
    RequestKind.CANCEL_WITH_SAVEPOINT,
    RequestKind.CHANGE_SETTINGS,
    RequestKind.KILL_SLOT,
    RequestKind.KILL_DRIVER,
    RequestKind.SLOW_SLOT,
)
NEED_PERMISSION = (RequestKind.KILL_SLOT, RequestKind.KILL_DRIVER, RequestKind.SLOW_SLOT)


def offers(
    pipeline: Pipeline, run: Run | None, view: RunView | None
) -> dict[RequestKind, ActionOffer]:
    """`view` is that of `run`, the newest."""
    return {kind: _offer(kind, pipeline, run, view) for kind in RequestKind}


def problem_with(kind: RequestKind, pipeline: Pipeline, run: Run | None) -> str:
    """Why `kind` is not possible now, in one sentence; empty if it is."""
    is_live = run is not None and not run.is_terminal
    if kind in OF_A_SAVEPOINT:
        return ""  # the savepoint decides, see `points.services`
    if kind is RequestKind.ALLOW_FAULTS:
        return ""
    if kind in STARTS:
        return f"{pipeline.name} has a run under way; stop or cancel it first." if is_live else ""
    if run is None or not is_live:
        return f"{pipeline.name} is not running."
    if run.desired == DesiredState.STOPPED and kind is not RequestKind.CANCEL:
        return f"{pipeline.name} is being stopped."
    if kind in NEED_RUNNING and run.status != JobStatus.RUNNING.value:
        return f"{pipeline.name} is {run.status}; this needs it to be RUNNING."
    if kind in NEED_PERMISSION and not pipeline.allows_faults:
        return f"{pipeline.name} does not allow faults on purpose; an admin may allow them."
    return ""


def _offer(
    kind: RequestKind, pipeline: Pipeline, run: Run | None, view: RunView | None
) -> ActionOffer:
    problem = problem_with(kind, pipeline, run)
    consequence = "" if problem else _consequence(kind, pipeline, view)
    return ActionOffer(kind, not problem, problem, consequence)


def _consequence(kind: RequestKind, pipeline: Pipeline, view: RunView | None) -> str:
    match kind:
        case RequestKind.SUBMIT:
            return (
                f"A new run starts from the beginning of the input at parallelism"
                f" {pipeline.parallelism}."
            )
        case RequestKind.RESTORE:
            return (
                "A new run starts from the chosen point; output that was written after that point"
                " is set aside and written again."
            )
        case RequestKind.CHECKPOINT:
            return "One more checkpoint is taken now; the pipeline goes on meanwhile."
        case RequestKind.SAVEPOINT:
            return "A savepoint is written and kept until it is deleted; the pipeline goes on."
        case RequestKind.STOP_WITH_SAVEPOINT:
            return "A savepoint is taken, its output is committed, and the pipeline ends."
        case RequestKind.CANCEL_WITH_SAVEPOINT:
            return "A savepoint is taken, its output is committed, and the pipeline is cancelled."
        case RequestKind.DISPOSE:
            return "The files of the savepoint are deleted; nothing can be restored from it."
        case RequestKind.LABEL:
            return "The savepoint is found under this name from now on; its files stay as they are."
        case RequestKind.CANCEL:
            return f"The pipeline ends at once; {_replay(view)} are not kept."
        case RequestKind.CHANGE_SETTINGS:
            return (
                "The run goes on with the new values, also after a failure; the next run starts"
                f" with the pipeline's own. A failure now would replay {_replay(view)}, and more"
                " where checkpoints are rarer."
            )
        case RequestKind.ALLOW_FAULTS:
            return (
                f"{pipeline.name} {'allows' if pipeline.allows_faults else 'does not allow'} faults"
                " on purpose now. Where they are allowed, admins may kill and stop its processes to"
                " see that it recovers; readers of its output wait meanwhile."
            )
        case RequestKind.KILL_SLOT:
            return f"The process of one slot is killed; {_replay(view)} will be replayed."
        case RequestKind.SLOW_SLOT:
            return "Checkpoints take longer for a while; the pipeline goes on."
        case RequestKind.KILL_DRIVER:
            return f"The driver is killed and replaced; {_replay(view)} will be replayed."


def _replay(view: RunView | None) -> str:
    newest = view.last_checkpoint_id if view is not None else None
    since = f"checkpoint {newest}" if newest else "the start"
    if view is None or view.records_to_replay is None:
        return f"the records read since {since}"
    return f"about {view.records_to_replay:,} records read since {since}"
