"""A fetched database: a missing part is damage, a failure of the local disk is not."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import Cache

from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle, StatePart
from pipelines.state.backend import StoredDatabase
from pipelines.state.on_disk import stored_database
from pipelines.state.on_disk.sorted_files import remove_abandoned
from pipelines.state.on_disk.stored_database import fetch_database, opened, row_schema

FILES = {"CURRENT": b"MANIFEST-000001\n", "schema.arrow": b"schema"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_failing_local_disk_does_not_count_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fetch_database(database(), tmp_path / "db")

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    for name in ("mkdir", "read_text"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, fail)
            with pytest.raises(Retryable, match=os.strerror(code)):
                fetch_database(database(), tmp_path / name)
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(Retryable, match=os.strerror(code)):
        row_schema(tmp_path / "db")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("IO error: No space left on device: While appending to file: 000009.log", Retryable),
        ("IO error: Input/output error: While pread", Retryable),
        ("IO error: No such file or directory: While open a file: 000008.sst", CorruptSnapshot),
        ("Corruption: checksum mismatch", CorruptSnapshot),
    ],
)
def test_library_errors_of_the_disk_are_distinguished_from_file_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[Exception]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:  # the library raises no more specific type
        raise Exception(said)

    monkeypatch.setattr(stored_database, "SortedFiles", fail)

    with pytest.raises(kind) as raised:
        opened(database(), tmp_path, Cache(1 << 20))
    assert type(raised.value) is kind


def test_a_database_without_its_current_file_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(CorruptSnapshot, match="belongs to no database"):
        fetch_database(database(without="CURRENT"), tmp_path / "db")


READER = """
import os, signal, sys
import msgspec
from pipelines.domain.snapshots import StateHandle
from pipelines.state.on_disk.stored_database import rows_of

def die(file, target, *, may_share):
    target.write_bytes(b"rows")
    os.kill(os.getpid(), signal.SIGKILL)

handle = msgspec.json.decode(sys.argv[1], type=StateHandle)
list(rows_of(handle, None, die, handle.key_group_range))
"""


def test_the_copy_that_a_killed_reader_leaves_is_removed_by_the_next_neighbour(
    tmp_path: Path,
) -> None:
    handle = msgspec.json.encode(database().handle).decode()
    ended = subprocess.run(
        [sys.executable, "-c", READER, handle], env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert ended.returncode == -signal.SIGKILL
    assert [each for each in tmp_path.rglob("*") if each.is_file() and each.stat().st_size]

    remove_abandoned(tmp_path)

    assert list(tmp_path.iterdir()) == []


def database(without: str = "") -> StoredDatabase:
    handle = StateHandle(
        state="totals",
        kind="table",
        file=FileHandle(name="c1-a1-MANIFEST", length=0, digest=""),
        key_groups=(0, 127),
        rows=1,
        schema={},
        format=StateFormat.ROCKSDB,
        parts=[
            StatePart(name=name, file=FileHandle(name=name, length=0, digest=""))
            for name in FILES
            if name != without
        ],
    )
    return StoredDatabase(handle, fetch, is_own=False)


def fetch(file: FileHandle, target: Path, *, may_share: bool = False) -> None:
    target.write_bytes(FILES.get(file.name, b""))
