"""A stage of slot processes always tells the master that it has ended."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.domain.ids import Attempt
from pipelines.lab import lab
from pipelines.lab.lab import SlotProcesses
from pipelines.runtime.master.job_events import StageEnded

PATIENCE_S = 20.0
ADDRESS: Any = SimpleNamespace(attempt=Attempt(3))


def test_a_slot_that_cannot_be_started_ends_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoProcess:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(lab.forks, "Process", NoProcess)
    posted: queue.Queue[Any] = queue.Queue()

    SlotProcesses(posted.put, lambda address, slot, environment: None).start(ADDRESS, 2)

    assert posted.get(timeout=PATIENCE_S) == StageEnded(
        Attempt(3), "a slot could not be started: AF_UNIX path too long"
    )
