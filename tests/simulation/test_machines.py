"""The simulator notices a machine that contradicts itself, even where the run recovers from it."""

import contextlib
from pathlib import Path

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.commit import CommitLog, Prepared
from tests.simulation.machines import MACHINES, BrokenMachine, machines_validated
from tests.simulation.simulated_run import NoProgress, Simulation


def test_every_machine_says_what_holds_between_two_events() -> None:
    assert [each.__name__ for each in MACHINES if "validate_state" not in vars(each)] == []


def test_a_contradiction_is_reported_though_somebody_caught_it() -> None:
    def contradict() -> None:
        with machines_validated():
            log = CommitLog()
            log._pending[CheckpointId(7)] = Prepared(CheckpointId(7), ("file",))
            with contextlib.suppress(InvariantViolated):
                log.on_completed(CheckpointId(3))

    with pytest.raises(BrokenMachine, match=r"1 times, first CommitLog\.on_completed\(3,\)"):
        contradict()


@pytest.mark.slow
def test_a_machine_that_keeps_what_it_need_not_is_found_by_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty output changes no result, so no checker of the run would see it."""
    prepare = CommitLog.on_prepared

    def keep_empty(self, checkpoint_id, committables):
        prepared = prepare(self, checkpoint_id, committables)
        self._pending.setdefault(checkpoint_id, Prepared(checkpoint_id, ()))
        return prepared

    monkeypatch.setattr(CommitLog, "on_prepared", keep_empty)

    with pytest.raises((BrokenMachine, NoProgress)) as found:
        Simulation(0, tmp_path).run()
    assert "has something to commit" in repr(found.getrepr(chain=True))
