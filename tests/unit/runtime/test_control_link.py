"""A message that is too long is refused with an error; link and attempt continue."""

import socket
from contextlib import closing

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import OperatorSnapshot, SubtaskSnapshot
from pipelines.runtime import control
from pipelines.runtime.control import (
    MASTER_DECODER,
    SLOT_DECODER,
    ControlLink,
    Declined,
    FromMaster,
    FromSlot,
)
from pipelines.runtime.slot.subtask_reports import SubtaskReports

CHECKPOINT, FILES = CheckpointId(7), Uid("files")
LONG = "x" * 2_000


def test_an_oversized_snapshot_declines_its_checkpoint_but_keeps_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "MAX_FRAME_BYTES", 1_500)
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        slot = ControlLink[FromMaster](ours, MASTER_DECODER, lambda: 0.0)
        master = ControlLink[FromSlot](theirs, SLOT_DECODER, lambda: 0.0)
        reports = SubtaskReports(slot.send, lambda point: None)

        reports.acknowledged(CHECKPOINT, snapshot_of(LONG), phases())
        declined = master.receive()
        reports.acknowledged(CHECKPOINT, snapshot_of("short"), phases())
        acknowledged = master.receive()

    assert isinstance(declined, Declined)
    assert (declined.vertex, declined.subtask) == (FILES, 1)
    assert declined.reason is CheckpointFailureReason.CHECKPOINT_DECLINED
    assert "kind Acknowledged takes 2," in declined.message
    assert "at most 1,500 can be sent" in declined.message
    assert "raise the parallelism" in declined.message
    assert type(acknowledged).__name__ == "Acknowledged"


def snapshot_of(text: str) -> SubtaskSnapshot:
    operator = OperatorSnapshot(uid=FILES, positions=text)
    return SubtaskSnapshot(vertex=FILES, subtask=1, operators=[operator])


def phases() -> SubtaskPhases:
    return SubtaskPhases(
        vertex=FILES,
        subtask=1,
        start_delay_ms=0.0,
        alignment_ms=0.0,
        sync_ms=0.0,
        async_ms=0.0,
        acknowledged_ms=0.0,
        state_bytes=0,
        uploaded_bytes=0,
        channels=[],
    )
