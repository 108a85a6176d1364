"""The working directory of a process is removed, however the process ended."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.state.on_disk.sorted_files import LOCK, PREFIX, WorkingDirectory, remove_abandoned

OWNER = """
import sys, time
from pathlib import Path
from pipelines.state.on_disk.sorted_files import WorkingDirectory
directory = WorkingDirectory(Path(sys.argv[1]), "victim")
(directory.path / "rows.sst").write_bytes(b"rows")
print(directory.path, flush=True)
time.sleep(60)
"""


def test_closing_a_working_directory_removes_it(tmp_path: Path) -> None:
    directory = WorkingDirectory(tmp_path, "run-a1")
    directory.fresh("db").mkdir()

    directory.close()

    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_never_gives_a_path_twice(tmp_path: Path) -> None:
    directory = WorkingDirectory(tmp_path, "run-a1")

    assert directory.fresh("db") != directory.fresh("db")
    directory.close()


def test_the_next_owner_removes_only_the_directory_of_a_killed_owner(
    tmp_path: Path,
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    victim = Path(owner.stdout.readline().strip())
    mine = WorkingDirectory(tmp_path, "mine")
    assert victim.is_dir()

    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    next_one = WorkingDirectory(tmp_path, "next")

    assert not victim.exists()
    assert mine.path.is_dir()
    for directory in (mine, next_one):
        directory.close()


def test_an_owner_that_a_neighbour_takes_for_dead_before_it_has_the_lock_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbour looks between the making of the lock and the taking of it."""
    take = fcntl.flock
    looks = iter([remove_abandoned])

    def take_after_a_look(lock: int, kind: int) -> None:
        if kind == fcntl.LOCK_EX and (look := next(looks, None)):
            look(tmp_path)
        take(lock, kind)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", take_after_a_look)
        owner = WorkingDirectory(tmp_path, "mine")
    remove_abandoned(tmp_path)

    assert next(looks, None) is None
    assert list(tmp_path.iterdir()) == [owner.path]
    assert (owner.path / LOCK).exists()
    owner.close()
    assert list(tmp_path.iterdir()) == []


def test_the_next_owner_finishes_a_removal_that_died_halfway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned = tmp_path / f"{PREFIX}victim"
    for name in ("db-1", "db-2"):
        (abandoned / name).mkdir(parents=True)
        (abandoned / name / "rows.sst").touch()
    (abandoned / LOCK).touch()
    remove = shutil.rmtree

    def die_behind(path: Path, **options: bool) -> None:
        remove(path, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die_behind)
        for _ in range(2):
            with pytest.raises(Killed):
                remove_abandoned(tmp_path)
    assert abandoned.exists()

    remove_abandoned(tmp_path)

    assert not abandoned.exists()


class Killed(BaseException):
    """Simulates the death of the process."""
