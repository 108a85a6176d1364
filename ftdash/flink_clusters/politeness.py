"""Decides what to ask a cluster in one look, and when the next look is due. Pure.

A look asks as little as the pages need: the list of jobs each time, the checkpoints of jobs that
run, and everything else only when Flink says that a job has changed. A cluster that does not answer
is asked ever more rarely.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenacity import RetryCallState, Retrying, wait_exponential

from ftdash.flink_clusters.bodies import CheckpointStatistics, JobOverview

LOOK_EVERY = timedelta(seconds=5)
IDLE_LOOK_EVERY = timedelta(seconds=15)
"""The pause while no job runs."""

PRESSURE_EVERY = timedelta(seconds=30)
"""Flink gathers its metrics every 10 s, and one request per operator is many."""

DETAILS_MAX = 2
"""The number of checkpoints per job whose subtasks one look asks for, the newest first."""

SETTLED_AFTER_MS = 6_000
"""Flink answers from a copy of a job that is up to `web.refresh-interval` old, 3 s by default. Its
answers right after a change, such as the exceptions, may be from before the change."""

SILENT_AFTER = timedelta(seconds=60)

_BACKOFF = wait_exponential(multiplier=LOOK_EVERY.total_seconds(), max=300)
_OVER = {"FAILED", "CANCELED", "FINISHED", "SUSPENDED"}


def is_over(state: str) -> bool:
    """True if a job with this JobStatus will not continue."""
    return state in _OVER


def pause_after(failed_looks: int) -> timedelta:
    """Returns 5, 10, 20, ... 300 s, for looks that failed one after the other."""
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = failed_looks
    return timedelta(seconds=_BACKOFF(state))


def pause_until_next(states: Iterable[str]) -> timedelta:
    """Returns the pause after a look that succeeded, given the states of all jobs."""
    return LOOK_EVERY if any(not is_over(each) for each in states) else IDLE_LOOK_EVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to ask about one job."""

    everything: bool  # its operators, settings and exceptions
    checkpoints: bool
    pressure: bool

    @property
    def is_nothing(self) -> bool:
        return not (self.everything or self.checkpoints or self.pressure)


def wanted(
    job: JobOverview,
    *,
    known_modification: int,
    takes_checkpoints: bool | None,
    pressure_at: datetime | None,
    now: datetime,
) -> Wanted:
    """`known_modification` is Flink's time of the newest change whose effects were all read."""
    is_changed = job.last_modification != known_modification
    goes_on = not is_over(job.state)
    return Wanted(
        everything=is_changed,
        checkpoints=is_changed or (goes_on and takes_checkpoints is not False),
        pressure=job.state == "RUNNING"
        and (pressure_at is None or now - pressure_at >= PRESSURE_EVERY),
    )


def is_settled(job: JobOverview, flink_now: int) -> bool:
    """True if all answers about the job are from after its newest change.

    `flink_now` is in ms since the epoch, by Flink's clock; negative means that Flink did not say.
    """
    return flink_now < 0 or flink_now - job.last_modification >= SETTLED_AFTER_MS


def to_detail(
    found: Iterable[CheckpointStatistics], known: Iterable[int]
) -> list[CheckpointStatistics]:
    """Returns the checkpoints whose subtasks to ask for; `known` ones were asked for already."""
    done = set(known)
    ended = [each for each in found if each.status != "IN_PROGRESS" and each.id not in done]
    return sorted(ended, key=lambda each: -each.id)[:DETAILS_MAX]
