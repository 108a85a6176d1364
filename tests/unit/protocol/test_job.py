"""The states of a run: only the moves in the table are legal."""

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.status import JobStatus
from pipelines.protocol.restart import MOVES, JobState

S = JobStatus
LEGAL = {
    (S.CREATED, S.INITIALIZING),
    (S.CREATED, S.CANCELLING),
    (S.CREATED, S.FAILING),
    (S.INITIALIZING, S.RUNNING),
    (S.INITIALIZING, S.RESTARTING),
    (S.INITIALIZING, S.CANCELLING),
    (S.INITIALIZING, S.FAILING),
    (S.INITIALIZING, S.FINISHED),
    (S.RUNNING, S.RESTARTING),
    (S.RUNNING, S.CANCELLING),
    (S.RUNNING, S.FAILING),
    (S.RUNNING, S.FINISHED),
    (S.RESTARTING, S.INITIALIZING),
    (S.RESTARTING, S.CANCELLING),
    (S.RESTARTING, S.FAILING),
    (S.CANCELLING, S.CANCELED),
    (S.FAILING, S.FAILED),
}
PATHS = {  # how to get to each state
    S.CREATED: [],
    S.INITIALIZING: [S.INITIALIZING],
    S.RUNNING: [S.INITIALIZING, S.RUNNING],
    S.RESTARTING: [S.INITIALIZING, S.RESTARTING],
    S.FAILING: [S.FAILING],
    S.FAILED: [S.FAILING, S.FAILED],
    S.CANCELLING: [S.CANCELLING],
    S.CANCELED: [S.CANCELLING, S.CANCELED],
    S.FINISHED: [S.INITIALIZING, S.RUNNING, S.FINISHED],
}


@pytest.mark.parametrize("target", list(S))
@pytest.mark.parametrize("start", list(S))
def test_legal_moves_happen_and_all_others_raise_and_change_nothing(
    start: JobStatus, target: JobStatus
) -> None:
    state = state_at(start)

    if (start, target) in LEGAL:
        state.move_to(target)
        assert state.status is target
        return
    with pytest.raises(InvariantViolated):
        state.move_to(target)
    assert state.status is start


def test_exactly_the_terminal_states_have_no_next_state() -> None:
    assert {status for status, to in MOVES.items() if not to} == {s for s in S if s.is_terminal}


def state_at(status: JobStatus) -> JobState:
    state = JobState()
    for step in PATHS[status]:
        state.move_to(step)
    return state
