"""The simulator notices a machine that contradicts itself, even if the run recovers from it."""

import contextlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pipelines.protocol
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.acking import RotatingTrees
from pipelines.protocol.commit import CommitLog, Prepared
from pipelines.protocol.coordination import Checkpoint, FailureTolerance
from pipelines.protocol.restart import NoRestart
from tests.simulation.machines import MACHINES, BrokenMachine, machines_validated
from tests.simulation.simulated_run import NoProgress, Simulation


def test_every_machine_declares_its_invariant_between_two_events() -> None:
    assert [each.__name__ for each in MACHINES if "validate_state" not in vars(each)] == []


def test_every_machine_of_the_protocol_is_watched() -> None:
    found = {each for module in modules() for each in classes_of(module) if handles_events(each)}

    assert sorted(each.__name__ for each in found - {*MACHINES, *PARTS}) == []
    assert {*MACHINES} <= found


PARTS = (
    Checkpoint,  # part of the coordinator, which checks it
    FailureTolerance,  # part of the coordinator, which checks it
    NoRestart,  # has no state
    RotatingTrees,  # part of an acker and of a spout, which check it
)


def modules() -> Iterator[ModuleType]:
    for each in pkgutil.iter_modules(pipelines.protocol.__path__):
        yield importlib.import_module(f"pipelines.protocol.{each.name}")


def classes_of(module: ModuleType) -> list[type]:
    """Returns the module's own classes, without interfaces."""
    own = [each for _, each in inspect.getmembers(module, inspect.isclass)]
    return [
        each
        for each in own
        if each.__module__ == module.__name__ and not getattr(each, "_is_protocol", False)
    ]


def handles_events(machine: type) -> bool:
    methods = [name for name, each in vars(machine).items() if inspect.isfunction(each)]
    return any(name.startswith(("on_", "move_to", "rotate")) for name in methods)


def test_a_contradiction_is_reported_even_if_its_exception_is_suppressed() -> None:
    def contradict() -> None:
        with machines_validated():
            log = CommitLog()
            log._pending[CheckpointId(7)] = Prepared(CheckpointId(7), ("file",))
            with contextlib.suppress(InvariantViolated):
                log.on_completed(CheckpointId(3))

    with pytest.raises(BrokenMachine, match=r"1 times, first CommitLog\.on_completed\(3,\)"):
        contradict()


@pytest.mark.slow
def test_a_seed_finds_a_machine_that_keeps_unneeded_state(
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
