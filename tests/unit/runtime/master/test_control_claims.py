"""Which messages of a slot claim a result of the run, so that their refusal is shown."""

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.runtime.control import (
    Beat,
    Committed,
    Declined,
    Deployed,
    Ended,
    Failed,
    FromSlot,
    SourcesEnded,
)
from pipelines.runtime.master.job_events import claim_of
from tests.unit.runtime.scripted_slots import acknowledgement

SEVENTH = CheckpointId(7)
DECLINED = CheckpointFailureReason.CHECKPOINT_DECLINED


@pytest.mark.parametrize(
    ("message", "claim"),
    [
        (acknowledgement(SEVENTH, "left"), "an acknowledgement of checkpoint 7 by left[0]"),
        (
            Declined(
                checkpoint_id=SEVENTH, vertex=Uid("left"), subtask=1, reason=DECLINED, message=""
            ),
            "a decline of checkpoint 7 by left[1]",
        ),
        (
            Committed(checkpoint_id=SEVENTH, vertex=Uid("out"), subtask=0),
            "a commit of checkpoint 7 by out[0]",
        ),
        (SourcesEnded(vertex=Uid("left"), subtask=0), "the end of the source left[0]"),
        (Ended(), "the end of all its subtasks"),
        (Deployed(), None),
        (Beat(), None),
        (Failed(vertex=None, subtask=None, cause="", detail="", is_fatal=False), None),
    ],
)
def test_the_claim_of_a_slots_message_is_named(message: FromSlot, claim: str | None) -> None:
    assert claim_of(message) == claim
