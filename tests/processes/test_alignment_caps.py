"""An alignment holds back more than its cap, in real processes: wait, overtake, or abort."""

from pathlib import Path

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed
from tests.processes.scripted import BEHIND, READ_SLOW
from tests.processes.scripted_run import CHECKPOINTING, EXACT, STEP_S, scripted

pytestmark = pytest.mark.slow

CAP = CHECKPOINTING + "alignment-buffer."
SMALL = {CAP + "max-size-per-channel": "1 kb"}
BELOW, BEYOND = range(2)  # slots, which get 28 and 72 of the records that wait behind a barrier
TOLERANT = {CHECKPOINTING + "tolerable-failed-checkpoints": "3"}


def test_an_alignment_over_its_cap_may_continue_and_reports_the_channel(tmp_path: Path) -> None:
    with scripted(tmp_path, SMALL) as script:
        script.until_between_the_barriers()
        assert not script.seen(BEHIND)
        counts = script.until_over()
        over_cap = [
            [one.is_over_cap for one in script.channels_of(slot)] for slot in (BELOW, BEYOND)
        ]

    assert counts == EXACT
    assert over_cap == [[False, False], [True, False]]


def test_an_alignment_over_its_cap_may_start_to_overtake(tmp_path: Path) -> None:
    with scripted(tmp_path, {**SMALL, CAP + "when-exceeded": "unaligned"}) as script:
        script.until_between_the_barriers()
        script.run.wait_for(lambda _: bool(script.seen(BEHIND)), STEP_S)
        counts = script.until_over()
        fast, slow = script.channels_of(BEYOND)
        has_turned = [script.relay(slot).is_unaligned for slot in (BELOW, BEYOND)]

    assert counts == EXACT
    assert has_turned == [False, True]
    assert fast.persisted_records == 0
    assert slow.persisted_records > 0


def test_an_alignment_over_its_cap_may_abort_and_the_next_one_is_exact(
    tmp_path: Path,
) -> None:
    settings = {**SMALL, **TOLERANT, CAP + "when-exceeded": "abort"}
    with scripted(tmp_path, settings) as script:
        script.until_between_the_barriers()
        script.until_seen(BEHIND)
        script.run.wait_for(lambda _: bool(script.run.of(CheckpointFailed)), STEP_S)
        [failed] = [envelope.event for envelope in script.run.of(CheckpointFailed)]
        script.tell(READ_SLOW)  # its barrier of the first checkpoint comes too late
        script.trigger()
        counts = script.until_over()

    assert isinstance(failed, CheckpointFailed)
    assert (failed.checkpoint_id, failed.reason) == (1, CheckpointFailureReason.CHECKPOINT_DECLINED)
    assert "alignment-buffer" in failed.message
    assert next(event.checkpoint_id for event in script.run.completed()) == 2
    assert counts == EXACT
