"""The soak damages a checkpoint while the driver stands still."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from bench.drill.staging import CHECKPOINTS_BEFORE, Staged
from bench.soak import disks
from bench.soak.fault_context import FaultContext
from ftdash.jobs.models import Run
from tests.polling import wait_until

STOPS_WITHIN_S = 20.0


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


class Slot:
    """Its kill finds the driver stopped, and may end it."""

    def __init__(self, driver: subprocess.Popen[bytes], *, ends_driver: bool) -> None:
        self._driver = driver
        self._ends_driver = ends_driver

    def kill(self) -> None:
        driver = psutil.Process(self._driver.pid)
        wait_until(lambda: driver.status() == psutil.STATUS_STOPPED, within_s=STOPS_WITHIN_S)
        if self._ends_driver:
            self._driver.kill()
            self._driver.wait()


@pytest.mark.parametrize("ends_driver", [False, True])
def test_a_checkpoint_is_damaged_even_if_the_driver_ends_meanwhile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: subprocess.Popen[bytes],
    ends_driver: bool,
) -> None:
    file = tmp_path / "chk-2" / "state.arrow"
    file.parent.mkdir()
    file.write_bytes(b"state of many keys")
    monkeypatch.setattr(
        disks, "_checkpoints", lambda staged, run: [file.parent] * CHECKPOINTS_BEFORE
    )
    slot, waited = Slot(driver, ends_driver=ends_driver), list[bool]()

    def wait(holds: Callable[[Any], bool]) -> None:
        waited.append(
            holds(SimpleNamespace(is_terminal=False, attempt=2, status="RUNNING", driver_pid=1))
        )

    run = SimpleNamespace(attempt=1, driver_pid=driver.pid)
    staged = SimpleNamespace(run=run, wait=wait)
    context = SimpleNamespace(staged=staged, slot=slot, rng=Random(1))

    disks.checkpoint_damaged(cast(FaultContext, context))

    assert file.read_bytes() != b"state of many keys"
    assert waited == [True, True, True]
    if not ends_driver:
        going_on = psutil.Process(driver.pid)
        wait_until(lambda: going_on.status() != psutil.STATUS_STOPPED, within_s=STOPS_WITHIN_S)


def test_a_checkpoint_that_is_deleted_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.JOBS_ROOT = tmp_path / "jobs"
    run = settings.JOBS_ROOT / "files-files" / "runs" / "0001-a"
    for number in (2, 9, 10):
        (run / "checkpoints" / f"chk-{number}").mkdir(parents=True)
        (run / "checkpoints" / f"chk-{number}" / "manifest.json").touch()
    scandir = os.scandir

    def scandir_too_late(place: str) -> Any:
        if Path(place).name == "chk-9":
            (Path(place) / "manifest.json").unlink()
            Path(place).rmdir()
        return scandir(place)

    monkeypatch.setattr(os, "scandir", scandir_too_late)
    staged = SimpleNamespace(name="files-files", place=tmp_path / "place")

    found = disks._checkpoints(cast(Staged, staged), cast(Run, SimpleNamespace(run_id="0001-a")))

    assert [each.name for each in found] == ["chk-2", "chk-10"]
