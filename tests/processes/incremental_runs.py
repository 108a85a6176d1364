"""Runs whose checkpoints refer to each other's files: their settings, and the files they leave."""

from pathlib import Path

import pytest

from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.driven_run import StartedRun
from tests.processes.savepoint_requests import manifest_of

BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])


def shared_files_of(point: Path, *, subtasks: tuple[int, ...] = (0, 1)) -> set[str]:
    return {
        file.name
        for snapshot in manifest_of(point).subtasks
        for operator in snapshot.operators
        for state in operator.states
        for file in state.files
        if file.is_shared and snapshot.subtask in subtasks
    }


def settings_of(backend: str, local: Path) -> dict[str, str]:
    return {
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.incremental": "true",
        "state.backend.type": backend,
        "state.backend.rocksdb.localdir": str(local),
        "state.backend.rocksdb.memory.fixed-per-slot": "1 mb",
    }


def points_of(run: StartedRun) -> list[str]:
    root = str(run.directory.path / "checkpoints")
    return FileSystemCheckpointStore([root]).published(root)
