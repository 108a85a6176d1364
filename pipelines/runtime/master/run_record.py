"""Records where a run stands and what it reports: status, outcome, journal.

Every part that belongs to a run and not to an attempt writes through here, so every event carries
the number of the attempt that was current when it happened.
"""

from pipelines.bus.journal import JournalWriter
from pipelines.domain.events import CheckpointCompleted, Event, JobStatusChanged
from pipelines.domain.run import MEMORY, scheme_of
from pipelines.domain.status import JobStatus
from pipelines.protocol.fencing import AttemptFence
from pipelines.protocol.job import JobState


class RunRecord:
    def __init__(self, journal: JournalWriter, fence: AttemptFence) -> None:
        self._journal = journal
        self._fence = fence
        self._state = JobState()
        self._outcome: tuple[JobStatus, str] | None = None

    @property
    def status(self) -> JobStatus:
        return self._state.status

    @property
    def outcome(self) -> tuple[JobStatus, str] | None:
        """How the run ends and why; None while it goes on."""
        return self._outcome

    @property
    def last_heard_ms(self) -> float:
        """Monotonic: when the driver before this one was last heard."""
        return self._journal.last_heard_ms

    @property
    def newest_completed(self) -> CheckpointCompleted | None:
        """The newest of any driver of the run."""
        return newest_completed(self._journal)

    def has_said(self, event: Event) -> bool:
        """True if a driver of the run has emitted this very event, as far as events are kept."""
        return event in self._journal.every(type(event))  # type: ignore[type-var]

    def emit(self, event: Event) -> None:
        self._journal.append(event, self._fence.current)

    def move_to(self, status: JobStatus, reason: str = "") -> None:
        """Raises InvariantViolated for a move that no run makes."""
        self._state.move_to(status)
        self.emit(JobStatusChanged(status=status, reason=reason))

    def end(self, status: JobStatus, reason: str) -> None:
        """The job master's loop ends after its current step; `status` is reached by then."""
        self._outcome = (status, reason)


def newest_completed(journal: JournalWriter) -> CheckpointCompleted | None:
    """The newest point that outlives the driver that completed it."""
    return journal.newest(CheckpointCompleted, lambda event: scheme_of(event.path) != MEMORY)
