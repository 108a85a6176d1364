"""Follows one recovery and reports its phases; names the parts that follow an attempt."""

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.domain.clock import Clock
from pipelines.domain.events import Event, RecoveryPhaseReached
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import RecoveryPhase
from pipelines.protocol.restart import RecoveryProgress, RestartBackoff
from pipelines.runtime.master.attempt.poison_desk import PoisonDesk
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.slots.metrics_board import MetricsBoard


class RecoveryWatch:
    """Without progress nothing is being recovered, and reached phases go unreported."""

    def __init__(self, clock: Clock, emit: Callable[[Event], None]) -> None:
        self._clock = clock
        self._emit = emit
        self._progress: RecoveryProgress | None = None
        self._records_at_failure = 0
        self._records_at_start = 0

    def on_failure(self, last_sign_of_life_ms: float, reached_records: int) -> None:
        """A new failure ends the watch over the recovery before it. `reached_records`: how far the
        sources have come, in any attempt."""
        self._progress = RecoveryProgress(last_sign_of_life_ms)
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
        """Without `reads_again` (at most once) there is nothing to catch up with."""
        self._records_at_start = source_records
        if not reads_again:
            self._records_at_failure = source_records
        self.reached(
            RecoveryPhase.DECIDE,
            restored_checkpoint_id=checkpoint_id,
            restored_path=path,
            records_to_replay=max(0, self._records_at_failure - source_records),
        )

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
