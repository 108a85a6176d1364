"""The actions that are possible on a pipeline now, and their costs, in numbers.

The same rules refuse a request: services call `problem_with` before they store one. Does not decide
who may act.
"""

from ftdash.jobs.answers import ActionOffer, RunView
from ftdash.jobs.models import DesiredState, Pipeline, Run
from pipelines.domain.commands import COMMANDS, Command, Needs, RequestKind
from pipelines.domain.status import JobStatus


def offers(
    pipeline: Pipeline, run: Run | None, view: RunView | None
) -> dict[RequestKind, ActionOffer]:
    """`view` is that of `run`, the newest."""
    return {kind: _offer(command, pipeline, run, view) for kind, command in COMMANDS.items()}


def problem_with(command: type[Command], pipeline: Pipeline, run: Run | None) -> str:
    """Why `command` is not possible now, in one sentence; empty if it is."""
    is_live = run is not None and not run.is_terminal
    if command.needs is Needs.NOTHING:
        return ""
    if command.needs is Needs.NO_LIVE_RUN:
        return f"{pipeline.name} has a run under way; stop or cancel it first." if is_live else ""
    if run is None or not is_live:
        return f"{pipeline.name} is not running."
    if command.needs is Needs.RUNNING and run.desired == DesiredState.STOPPED:
        return f"{pipeline.name} is being stopped."
    if command.needs is Needs.RUNNING and run.status != JobStatus.RUNNING.value:
        return f"{pipeline.name} is {run.status}; this needs it to be RUNNING."
    if command.is_fault and not pipeline.allows_faults:
        return f"{pipeline.name} does not allow faults on purpose; an admin may allow them."
    return ""


def _offer(
    command: type[Command], pipeline: Pipeline, run: Run | None, view: RunView | None
) -> ActionOffer:
    problem = problem_with(command, pipeline, run)
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
