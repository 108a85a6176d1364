"""The parts that follow an attempt from its decision to its end. Decides nothing."""

from dataclasses import dataclass

from pipelines.protocol.restart import RestartBackoff
from pipelines.runtime.master.attempt.poison_desk import PoisonDesk
from pipelines.runtime.master.attempt.recovery_watch import RecoveryWatch
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.slots.metrics_board import MetricsBoard


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWatchers:
    checkpoints: CheckpointHost
    board: MetricsBoard
    recovery: RecoveryWatch
    poison: PoisonDesk
    restart: RestartBackoff
