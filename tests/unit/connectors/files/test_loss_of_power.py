"""Exactly-once files whose writer dies at any step, with or without a loss of power.

No file is lost, none is there twice, and none is there in part.

Source: the crash schedules of ALICE (Pillai et al., OSDI 2014), given what was synced.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.domain.ids import RunId
from tests.contracts.sink_host import Host
from tests.contracts.sink_readers import FilesReader
from tests.unit.storage.disks import STEPS_MAX, DurableDisk

pytestmark = pytest.mark.slow

RUN, OTHER, THIRD = RunId("run-1"), RunId("run-2"), RunId("run-3")
IDS = list(range(20))
Deed = Callable[[Host], None]


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_crash_at_any_step_of_writing_loses_or_doubles_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    """Committed output stays, even if no process commits it again."""
    for place in after_each_step(tmp_path, monkeypatch, power, before=nothing, deed=write_all):
        assert not place.is_done or place.visible() == IDS
        write_all(place.host)

        assert place.visible() == IDS


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_crash_at_any_step_of_a_restore_loses_or_doubles_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    """Files that a first try set aside remain for a second try, and for a restore of the newest."""
    for place in after_each_step(
        tmp_path, monkeypatch, power, before=write_all, deed=restore_the_first
    ):
        restore_the_first(place.host)
        assert place.visible() == IDS

        place.host.live(THIRD, restore=place.host.newest(RUN), until=len(IDS))
        assert place.visible() == IDS


class Place:
    def __init__(self, home: Path) -> None:
        self.is_done = False
        self.root = home / "root"
        self.root.mkdir(parents=True)
        self._output = self.root / "made" / "with the first run"
        self.host = Host(home, ExactlyOnceFiles(self._output, pipeline="delays"))

    def visible(self) -> list[int]:
        return sorted(FilesReader(self._output).look())


def after_each_step(
    home: Path, monkeypatch: pytest.MonkeyPatch, power: str, *, before: Deed, deed: Deed
) -> Iterator[Place]:
    """Yields one place for each step at which `deed` was killed, then one where it completed."""
    for step in range(1, STEPS_MAX):
        place = Place(home / f"{power}-{step}")
        disk = DurableDisk(monkeypatch, place.root)
        before(place.host)
        was_killed = disk.kill_at(step, lambda: deed(place.host))  # noqa: B023
        if power == "fails":
            disk.lose_power()
        place.is_done = not was_killed
        yield place
        if place.is_done:
            return
    pytest.fail("it takes a bounded number of steps")


def nothing(host: Host) -> None:
    pass


def write_all(host: Host) -> None:
    host.live(RUN, parallelism=1, until=len(IDS))


def restore_the_first(host: Host) -> None:
    host.live(OTHER, restore=host.point(RUN, 1), parallelism=1, until=len(IDS))
