"""The states of a run and the moves between them.

Pure; one table. Source: Flink, `JobStatus` and `ExecutionGraph` transitions.
"""

from pipelines.domain.errors import check
from pipelines.domain.status import JobStatus

_S = JobStatus
MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    _S.CREATED: frozenset({_S.INITIALIZING, _S.CANCELLING, _S.FAILING}),
    # A run finishes from here if it only had to commit what its final point had prepared.
    _S.INITIALIZING: frozenset({_S.RUNNING, _S.RESTARTING, _S.CANCELLING, _S.FAILING, _S.FINISHED}),
    _S.RUNNING: frozenset({_S.RESTARTING, _S.CANCELLING, _S.FAILING, _S.FINISHED}),
    _S.RESTARTING: frozenset({_S.INITIALIZING, _S.CANCELLING, _S.FAILING}),
    _S.CANCELLING: frozenset({_S.CANCELED}),
    _S.FAILING: frozenset({_S.FAILED}),
    _S.CANCELED: frozenset(),
    _S.FAILED: frozenset(),
    _S.FINISHED: frozenset(),
}


class JobState:
    """Guarantee: only moves of the table happen; anything else raises and changes nothing."""

    def __init__(self) -> None:
        self._status = JobStatus.CREATED

    @property
    def status(self) -> JobStatus:
        return self._status

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check(self._status in MOVES, "a run is in a state of the table", status=self._status)

    def move_to(self, status: JobStatus) -> None:
        """Raises InvariantViolated for a move that is not in the table."""
        check(status in MOVES[self._status], "a legal move", current=self._status, to=status)
        self._status = status
