"""If a sink cannot prepare now, the checkpoint is declined and a later one has its records."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipelines.connectors.contract import PrepareRefused
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.elements import Barrier, Records
from pipelines.domain.ids import CheckpointId
from pipelines.domain.settings import BarrierOptions
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.subtask_reporter import failure_reason
from tests.unit.runtime.fakes import batch_of
from tests.unit.runtime.hosted import ALIGNED, LEFT, OVERTAKING, RIGHT, JoiningSubtask, MemorySink
from tests.unit.runtime.permits import permit


@dataclass(slots=True)
class RefusingSink(MemorySink):
    refused: set[int] = field(default_factory=set)

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        if checkpoint_id in self.refused:
            raise PrepareRefused("No more transactions can be prepared.")
        return MemorySink.prepare(self, checkpoint_id)


@pytest.mark.parametrize("options", [ALIGNED, OVERTAKING])
def test_a_refused_prepare_declines_the_checkpoint_and_the_subtask_continues(
    options: BarrierOptions, tmp_path: Path
) -> None:
    sink = RefusingSink(refused={1})
    host = JoiningSubtask(tmp_path, sink=sink, options=options)

    deliver(host, key=1, checkpoint_id=1)

    [(declined, error)] = host.reporter.declines
    assert (declined, str(error)) == (1, "No more transactions can be prepared.")
    assert failure_reason(error) is CheckpointFailureReason.CHECKPOINT_DECLINED
    assert host.reporter.snapshots == {}
    assert host.reporter.failures == []


@pytest.mark.parametrize("options", [ALIGNED, OVERTAKING])
def test_records_of_a_refused_prepare_are_part_of_the_next_checkpoint(
    options: BarrierOptions, tmp_path: Path
) -> None:
    sink = RefusingSink(refused={1})
    host = JoiningSubtask(tmp_path, sink=sink, options=options)
    deliver(host, key=1, checkpoint_id=1)

    deliver(host, key=2, checkpoint_id=2)
    host.subtask.checkpoints.on_completed(permit(2))

    assert list(host.reporter.snapshots) == [2]
    assert host.seen_at(2) == [1, 2]
    assert sink.committed == [1, 2]


def deliver(host: JoiningSubtask, *, key: int, checkpoint_id: int) -> None:
    """Sends one record, then the barrier on both inputs."""
    host.inputs[LEFT].send(Records(batch_of([(key, 0)])))
    host.consume()
    for side in (LEFT, RIGHT):
        host.inputs[side].send(Barrier(checkpoint_id=CheckpointId(checkpoint_id), trigger_ms=0))
    host.consume()
