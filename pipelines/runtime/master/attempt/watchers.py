"""The parts that follow an attempt from its decision to its end.

`RecoveryWatch` follows one recovery and reports each phase when the run reaches it.

`PoisonDesk` decides what a run does about records that fail again. It hosts
`protocol.repeated_failures`, knows the policy, remembers findings across drivers through the
journal, and gives the next attempt its isolation. `failures` decides everything else that follows
from a failure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.bus.journal import JournalWriter
from pipelines.domain.clock import Clock
from pipelines.domain.events import Event, RecordQuarantined, RecordsIsolated, RecoveryPhaseReached
from pipelines.domain.ids import CheckpointId
from pipelines.domain.poison import Isolation, PoisonPolicy
from pipelines.domain.run import SnapshotPlaces
from pipelines.domain.settings import PoisonOptions
from pipelines.domain.status import RecoveryPhase
from pipelines.protocol.repeated_failures import (
    Deterministic,
    Finding,
    Isolate,
    NobodysFault,
    PoisonRecords,
    Quarantine,
    Repeated,
)
from pipelines.protocol.restart import RecoveryProgress, RestartBackoff
from pipelines.runtime.control import Failed
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.slots.metrics_board import MetricsBoard

if TYPE_CHECKING:
    from pipelines.domain.origins import RecordOrigin


MOST_APART = 1_024
"""The limit of origins whose batches are handled record by record. Only the newest are kept: the
older ones are resolved or have passed."""


class PoisonDesk:
    def __init__(
        self,
        options: PoisonOptions,
        places: SnapshotPlaces,
        emit: Callable[[Event], None],
        journal: JournalWriter,
    ) -> None:
        self._is_on = options.policy is PoisonPolicy.QUARANTINE
        self._limit = options.limit
        self._home = places.quarantine
        self._emit = emit
        self._journal = journal
        self._apart: list[RecordOrigin] = []
        self._records = PoisonRecords(self._limit, _found(journal) if self._is_on else None)

    def on_settings(self, options: PoisonOptions) -> None:
        """Applies from the next failure on. Records in quarantine stay there."""
        found = self._records.isolation if self._is_on else _found(self._journal)
        self._is_on = options.policy is PoisonPolicy.QUARANTINE
        self._limit = options.limit
        self._records = PoisonRecords(self._limit, found)

    @property
    def isolation(self) -> Isolation:
        """The records that the next attempt reads in parts, or does not pass to operators."""
        found = self._records.isolation
        return Isolation(poison=found.poison, ranges=found.ranges, apart=list(self._apart))

    def on_failure(self, failed: Failed, repeated: Repeated) -> Finding:
        """Decides whether a record is at fault. `repeated`: the verdict on this failure so far."""
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
        """Returns True if even a fatal failure gets a restart: one record may be at fault."""
        is_of_record = failed.error is not None and failed.error.is_of_record
        return self._is_on and is_of_record and not isinstance(repeated, Deterministic)


def _found(journal: JournalWriter) -> Isolation:
    """Returns the findings of earlier drivers."""
    return Isolation(
        poison=[event.record for event in journal.every(RecordQuarantined)],
        ranges=[event.range for event in journal.every(RecordsIsolated)],
    )


class RecoveryWatch:
    """Follows one recovery. Outside of a recovery it reports no phases."""

    def __init__(self, clock: Clock, emit: Callable[[Event], None]) -> None:
        self._clock = clock
        self._emit = emit
        self._progress: RecoveryProgress | None = None
        self._records_at_failure = 0
        self._records_at_start = 0

    def on_failure(
        self, last_sign_of_life_ms: float, reached_records: int, *, waited_ms: float = 0.0
    ) -> None:
        """Begins to watch a recovery, instead of any earlier one. `reached_records`: the furthest
        position of the sources in any attempt. `waited_ms`: a deliberate wait before this driver
        began."""
        self._progress = RecoveryProgress(last_sign_of_life_ms)
        passed_ms = self._clock.monotonic_ms() - last_sign_of_life_ms
        self._progress.on_wait(last_sign_of_life_ms)
        self._progress.on_waited(last_sign_of_life_ms + max(0.0, min(waited_ms, passed_ms)))
        self._records_at_failure = max(self._records_at_failure, reached_records)
        self.reached(RecoveryPhase.DETECT)

    def on_decided(
        self,
        checkpoint_id: CheckpointId | None,
        path: str | None,
        source_records: int,
        *,
        reads_again: bool = True,
    ) -> None:
        """With `reads_again` False (at most once), no records need to be read again."""
        self._records_at_start = source_records
        if not reads_again:
            self._records_at_failure = source_records
        self.reached(
            RecoveryPhase.DECIDE,
            restored_checkpoint_id=checkpoint_id,
            restored_path=path,
            records_to_replay=max(0, self._records_at_failure - source_records),
        )

    def on_begin_failed(self) -> None:
        """The next attempt could not begin, so its next try counts as a recovery of its own."""
        if self._progress is not None:
            self.on_failure(self._clock.monotonic_ms(), self._records_at_failure)

    def on_wait(self) -> None:
        """A deliberate wait of the run begins."""
        if self._progress is not None:
            self._progress.on_wait(self._clock.monotonic_ms())

    def on_waited(self) -> None:
        if self._progress is not None:
            self._progress.on_waited(self._clock.monotonic_ms())

    def on_source_records(self, source_records: int) -> None:
        if source_records > self._records_at_start:
            self.reached(RecoveryPhase.FIRST_RECORD)
        if source_records >= self._records_at_failure:
            self.reached(RecoveryPhase.CAUGHT_UP)

    def reached(
        self,
        phase: RecoveryPhase,
        *,
        restored_checkpoint_id: CheckpointId | None = None,
        restored_path: str | None = None,
        records_to_replay: int | None = None,
    ) -> None:
        progress = self._progress
        if progress is None or not progress.expects(phase):
            return
        duration_ms = progress.on_reached(phase, self._clock.monotonic_ms())
        self._emit(
            RecoveryPhaseReached(
                phase=phase,
                duration_ms=duration_ms,
                restored_checkpoint_id=restored_checkpoint_id,
                restored_path=restored_path,
                records_to_replay=records_to_replay,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWatchers:
    checkpoints: CheckpointHost
    board: MetricsBoard
    recovery: RecoveryWatch
    poison: PoisonDesk
    restart: RestartBackoff
