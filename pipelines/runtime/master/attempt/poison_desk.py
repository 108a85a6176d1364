"""Decides what a run does about records that fail again: hosts `protocol.repeated_failures`.

Knows the policy, remembers findings across drivers through the journal, and gives the next attempt
its isolation. `failures` decides what a failure means for the run otherwise.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.bus.journal import JournalWriter
from pipelines.domain.events import Event, RecordQuarantined, RecordsIsolated
from pipelines.domain.poison import Isolation, PoisonPolicy
from pipelines.domain.run import SnapshotPlaces
from pipelines.domain.settings import Settings
from pipelines.protocol.repeated_failures import (
    Deterministic,
    Finding,
    Isolate,
    NobodysFault,
    PoisonRecords,
    Quarantine,
    Repeated,
)
from pipelines.runtime.control import Failed

if TYPE_CHECKING:
    from pipelines.domain.elements import RecordOrigin


MOST_APART = 1_024
"""How many origins of batches are handled one by one: the newest, since older ones are resolved or
have passed."""


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
        """What the next attempt reads in parts, or does not give to operators."""
        found = self._records.isolation
        return Isolation(poison=found.poison, ranges=found.ranges, apart=list(self._apart))

    def on_failure(self, failed: Failed, repeated: Repeated) -> Finding:
        """`repeated`: the verdict on the same failure at one of these records."""
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
        """True if even a refused error may be one record's fault, and gets a restart."""
        is_of_record = failed.error is not None and failed.error.is_of_record
        return self._is_on and is_of_record and not isinstance(repeated, Deterministic)


def _found(journal: JournalWriter) -> Isolation:
    """What the drivers before this one have found."""
    return Isolation(
        poison=[event.record for event in journal.every(RecordQuarantined)],
        ranges=[event.range for event in journal.every(RecordsIsolated)],
    )
