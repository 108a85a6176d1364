"""Each machine notices when its fields contradict one another, and accepts them when they agree."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.ledger import OutputShare
from pipelines.domain.poison import IsolatedRange
from pipelines.domain.status import RecoveryPhase
from pipelines.protocol.acking import Acker, tree_ids
from pipelines.protocol.commit import AttemptFence, OutputLedger
from pipelines.protocol.coordination import FailureTolerance
from pipelines.protocol.repeated_failures import PoisonRecords, RepeatedFailures
from pipelines.protocol.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    RecoveryProgress,
)

MS = 1_000.0


def acker() -> Acker:
    acker = Acker(index=0, count=1)
    acker.on_init(tree_ids(0, np.array([0, 1])), np.array([7, 7], np.uint64))
    return acker


def exponential() -> ExponentialDelayRestart:
    return ExponentialDelayRestart(
        initial_ms=MS,
        max_ms=4 * MS,
        multiplier=2.0,
        reset_threshold_ms=MS,
        jitter_factor=0.0,
        attempts=3,
    )


def ranges() -> PoisonRecords:
    return PoisonRecords(limit=1)


def forget_edges(acker: Acker) -> None:
    acker._spouts[0].values[0] = 0


def announce_and_fail(acker: Acker) -> None:
    acker._spouts[0].states[1] = 3


def lose_a_place(acker: Acker) -> None:
    acker._spouts[0].values = acker._spouts[0].values[:1]


def keep_an_empty_share(ledger: OutputLedger) -> None:
    empty = OutputShare(checkpoint_id=CheckpointId(1), rows=0, digest=None, tokens=[])
    ledger._pending[CheckpointId(1)] = empty


def run_before_the_first(fence: AttemptFence) -> None:
    fence._is_over = False


def count_what_is_forgiven(tolerance: FailureTolerance) -> None:
    tolerance._newest_completed = CheckpointId(5)
    tolerance._counted.add(CheckpointId(4))


def restart_too_often(backoff: Any) -> None:
    backoff._restarts = 9


def wait_too_long(backoff: ExponentialDelayRestart) -> None:
    backoff._backoff_ms = 5 * MS


def fail_earlier(rate: FailureRateRestart) -> None:
    rate._failed_ms.extend([2.0, 1.0])


def skip_a_step(progress: RecoveryProgress) -> None:
    progress._steps.append(RecoveryPhase.RESTORE)


def reach_a_milestone_first(progress: RecoveryProgress) -> None:
    progress._milestones.add(RecoveryPhase.FIRST_RECORD)


def read_in_parts_of_nothing(records: PoisonRecords) -> None:
    nothing = IsolatedRange(source=Uid("in"), split="0", first_offset=0, last_offset=9, step=0)
    records._ranges.append(nothing)


def fail_without_a_try(failures: RepeatedFailures) -> None:
    failures._streaks.append(_Streak())  # type: ignore[arg-type]


class _Streak:
    tries = 0
    ran_ms = 0.0


@pytest.mark.parametrize(
    ("make", "contradict"),
    [
        (acker, forget_edges),
        (acker, announce_and_fail),
        (acker, lose_a_place),
        (OutputLedger, keep_an_empty_share),
        (AttemptFence, run_before_the_first),
        (lambda: FailureTolerance(3), count_what_is_forgiven),
        (lambda: FixedDelayRestart(attempts=3, delay_ms=0.0), restart_too_often),
        (exponential, restart_too_often),
        (exponential, wait_too_long),
        (lambda: FailureRateRestart(max_failures=3, interval_ms=1.0, delay_ms=0.0), fail_earlier),
        (lambda: RecoveryProgress(0.0), skip_a_step),
        (lambda: RecoveryProgress(0.0), reach_a_milestone_first),
        (ranges, read_in_parts_of_nothing),
        (lambda: RepeatedFailures(tries_min=2, over_min_ms=0.0), fail_without_a_try),
    ],
)
def test_a_contradiction_is_noticed(
    make: Callable[[], Any], contradict: Callable[[Any], None]
) -> None:
    machine = make()
    machine.validate_state()

    contradict(machine)

    with pytest.raises(InvariantViolated):
        machine.validate_state()
