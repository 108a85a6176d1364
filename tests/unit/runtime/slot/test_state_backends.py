"""The state backend that the settings ask for, and the files it leaves on this machine."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.settings import StateOptions
from pipelines.domain.settings.parsing import parse_settings
from pipelines.runtime.slot.deployment import state_backends
from pipelines.state.backend import TableDescriptor
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.on_disk.rocksdb import RocksDbBackend

GROUPS = KeyGroupRange(0, 127)
SEEN = TableDescriptor("seen", pa.schema([("id", pa.int64())]), pa.schema([]), {}, ("id",))


def test_state_is_kept_in_memory_unless_the_settings_say_otherwise() -> None:
    backends = state_backends(options(), "slot")

    assert isinstance(backends.create(GROUPS, 128), HashMapBackend)


def test_databases_use_the_configured_directory_and_are_removed_at_the_end(tmp_path: Path) -> None:
    given = {"state.backend.type": "rocksdb", "state.backend.rocksdb.localdir": str(tmp_path)}
    backends = state_backends(options(given), "run-a3-0")

    assert isinstance(backends.create(GROUPS, 128), RocksDbBackend)
    [directory] = tmp_path.iterdir()
    assert "run-a3-0" in directory.name
    backends.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    localdir = str(tmp_path / "file")
    given = {"state.backend.type": "rocksdb", "state.backend.rocksdb.localdir": localdir}

    with pytest.raises(Rejected, match=f"{localdir}.*state.backend.rocksdb.localdir"):
        state_backends(options(given), "slot")


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (errno.EACCES, Rejected),
        (errno.EROFS, Rejected),
        (errno.ENOENT, Rejected),
        (errno.ENOSPC, Retryable),
        (errno.EDQUOT, Retryable),
        (errno.EIO, Retryable),
        (errno.ESTALE, Retryable),
        (errno.EMFILE, Retryable),
    ],
)
def test_a_wrong_directory_is_refused_but_a_passing_problem_is_retryable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int, kind: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(Path, "mkdir", fail)
    given = {"state.backend.type": "rocksdb", "state.backend.rocksdb.localdir": str(tmp_path)}

    with pytest.raises(kind, match=f"{tmp_path}: {os.strerror(problem)}"):
        state_backends(options(given), "slot")


@pytest.mark.parametrize("text", ["64", "1 kb", "512 kb", "-1 mb", "1 tb", "many"])
def test_an_invalid_or_too_small_memory_size_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match=r"memory\.fixed-per-slot.*64 mb"):
        options({"state.backend.rocksdb.memory.fixed-per-slot": text})


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("is_incremental", [True, False])
def test_checkpoints_are_incremental_only_if_the_settings_say_so(
    tmp_path: Path, backend: str, is_incremental: bool
) -> None:
    given = {
        "state.backend.type": backend,
        "state.backend.rocksdb.localdir": str(tmp_path),
        "execution.checkpointing.incremental": str(is_incremental).lower(),
    }
    backends = state_backends(options(given), "slot")
    state = backends.create(GROUPS, 128)
    state.table(SEEN).rows_for(pa.record_batch([pa.array([1])], schema=SEEN.key))

    [frozen] = state.cut_increment(CheckpointId(1), NO_CHECKPOINT)

    assert (frozen.increment is not None) is is_incremental
    assert sum(batch.num_rows for batch in frozen.batches) == (0 if is_incremental else 1)
    state.close()
    backends.close()


def options(given: dict[str, str] | None = None) -> StateOptions:
    return parse_settings(given or {}).state
