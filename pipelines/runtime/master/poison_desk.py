"""What a run does about records that fail again: hosts `protocol.poison_records`.

Knows the policy, remembers across drivers by the journal, and says what the next attempt is told.
What a failure means for the run otherwise is `failures`.
"""

from collections.abc import Callable

from pipelines.bus.journal import JournalWriter
from pipelines.domain.events import Event, RecordQuarantined, RecordsIsolated
from pipelines.domain.origin import RecordOrigin
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.poison import Isolation, PoisonPolicy
from pipelines.domain.settings import Settings
from pipelines.protocol.poison_records import (
    Finding,
    Isolate,
    NobodysFault,
    PoisonRecords,
    Quarantine,
)
from pipelines.protocol.repeated_failures import Deterministic, Repeated
from pipelines.runtime.control import Failed

MOST_APART = 1_024
"""Origins of batches that are handled one by one: the newest, since older ones have been told apart
or have passed."""


class PoisonDesk:
    def __init__(
        self,
        settings: Settings,
        places: SnapshotPlaces,
        emit: Callable[[Event], None],
        journal: JournalWriter,
    ) -> None:
        self._is_on = settings.poison_policy is PoisonPolicy.QUARANTINE
        self._limit = settings.poison_limit
        self._home = places.quarantine
        self._emit = emit
        self._apart: list[RecordOrigin] = []
        self._records = PoisonRecords(self._limit, _found(journal) if self._is_on else None)

    @property
    def isolation(self) -> Isolation:
        """What the next attempt is told."""
        found = self._records.isolation
        return Isolation(poison=found.poison, ranges=found.ranges, apart=list(self._apart))

    def on_failure(self, failed: Failed, repeated: Repeated) -> Finding:
        """`repeated`: what is known of the same failure at one of these records."""
        if failed.error is not None:
            self._apart = [*self._apart, *failed.error.candidates][-MOST_APART:]
        if not self._is_on or failed.error is None or not isinstance(repeated, Deterministic):
            return NobodysFault()
        found = self._records.on_repeated(failed.error, failed.detail)
        match found:
            case Isolate(isolated):
                self._emit(RecordsIsolated(range=isolated))
            case Quarantine(record):
                self._emit(
                    RecordQuarantined(
                        record=record,
                        directory=f"{self._home}/{record.source}",
                        count=len(self._records.isolation.poison),
                        limit=self._limit,
                    )
                )
        return found

    def awaits_more_tries(self, failed: Failed, repeated: Repeated) -> bool:
        """Whether even what is refused for good may be one record's fault, and gets a restart."""
        is_of_record = failed.error is not None and failed.error.is_of_record
        return self._is_on and is_of_record and not isinstance(repeated, Deterministic)


def _found(journal: JournalWriter) -> Isolation:
    """By the drivers before this one."""
    return Isolation(
        poison=[event.record for event in journal.every(RecordQuarantined)],
        ranges=[event.range for event in journal.every(RecordsIsolated)],
    )
