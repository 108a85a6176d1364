"""Carries out one work on a query's files, of any kind, and ends it once.

It knows the services of all kinds, which themselves use `work`; so it cannot be a part of that.
"""

from collections.abc import Callable

from ftdash.watching.models import QueryWork, WorkKind, WorkState
from ftdash.watching.services import forks, savepoints, state, work

DOING: dict[WorkKind, Callable[[QueryWork, work.Progress], None]] = {
    WorkKind.SAVEPOINT: savepoints.take,
    WorkKind.VERIFICATION: savepoints.verify,
    WorkKind.DELETION: savepoints.delete,
    WorkKind.PREFLIGHT: forks.judge,
    WorkKind.FORK: forks.carry_out,
    WorkKind.STATE: state.look,
}


def carry_out(key: int) -> QueryWork:
    """Runs in the process of the work, or of a command. Returns the row as it is at the end."""
    row = QueryWork.objects.select_related("query", "savepoint").get(pk=key)
    if row.state != WorkState.RUNNING:
        return row
    with work.signs_of_life(key):
        try:
            DOING[WorkKind(row.kind)](row, work.Progress(row))
        except work.PROBLEMS as problem:
            work.end(key, problem=str(problem) or work.INTERRUPTED)
        except Exception as error:
            work.end(key, problem=f"It failed with {type(error).__name__}; see query-work.log.")
            raise
    row.refresh_from_db()
    return row
