"""A notice of damage asks the driver of the point's run, once per damage, to read the point."""

import os
from pathlib import Path

import pytest

from pipelines.bus import inbox
from pipelines.bus.inbox import AGAIN_AFTER_MS, Inbox, report_damage, reporting_damage
from pipelines.bus.lease import Lease
from pipelines.domain.commands import VerifyPoints
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.ids import RunId
from pipelines.domain.run import RunDirectory
from tests.unit.runtime.fakes import ManualClock

PROBLEM = "a.arrow was altered."


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.of(tmp_path, "flights", RunId("r-1"))
    directory.path.mkdir(parents=True)
    directory.spec_file.touch()
    return directory


def test_the_driver_is_asked_to_read_the_point_and_given_the_reason(run: RunDirectory) -> None:
    assert report(run)

    [command] = asked(run)
    assert (command.requested_by, command.reason) == ("a test", f"/chk-1: {PROBLEM}")


def test_the_same_damage_is_reported_once_even_after_the_answer(run: RunDirectory) -> None:
    report(run)
    assert not report(run)
    for command in asked(run):
        Inbox(run).done(command.request_id)

    assert not report(run, wall_ms=AGAIN_AFTER_MS - 1)
    assert asked(run) == []


def test_other_damage_is_reported_and_the_same_damage_again_after_a_while(
    run: RunDirectory,
) -> None:
    report(run)
    report(run, location="/chk-2")
    report(run, problem="b.arrow is missing.")
    report(run, wall_ms=AGAIN_AFTER_MS)

    assert len(asked(run)) == 4


@pytest.mark.parametrize("place", ["runs/r-1/checkpoints/chk-4", "savepoints/savepoint-r-1-4"])
def test_damage_in_a_live_runs_directories_is_reported_to_the_run(
    run: RunDirectory, place: str
) -> None:
    with Lease.acquire(run):
        find_damage_in(str(run.path.parent.parent / place))

    assert [command.requested_by for command in asked(run)] == ["read_state"]


def test_ended_runs_and_runs_without_the_point_are_not_asked(
    run: RunDirectory, tmp_path: Path
) -> None:
    find_damage_in(str(run.path / "checkpoints" / "chk-4"))
    with Lease.acquire(run):
        find_damage_in(str(tmp_path / "elsewhere" / "savepoint-r-1-4"))
        find_damage_in("s3://bucket/flights/savepoints/savepoint-r-1-4")

    assert asked(run) == []


def test_a_reader_learns_of_the_damage_even_if_the_driver_cannot_be_asked(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(directory: RunDirectory, command: VerifyPoints) -> bool:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(inbox, "submit", refuse)
    with pytest.raises(Retryable, match="cannot be asked"):
        report(run)

    with Lease.acquire(run):
        find_damage_in(str(run.path / "checkpoints" / "chk-4"))

    assert "its driver cannot be asked" in caplog.text


def report(
    run: RunDirectory, location: str = "/chk-1", problem: str = PROBLEM, wall_ms: int = 0
) -> bool:
    return report_damage(run, location, problem, found_by="a test", wall_ms=wall_ms)


def find_damage_in(location: str) -> None:
    with (
        pytest.raises(CorruptSnapshot, match=r"a\.arrow"),
        reporting_damage(location, ManualClock(), found_by="read_state"),
    ):
        raise CorruptSnapshot(PROBLEM)


def asked(run: RunDirectory) -> list[VerifyPoints]:
    return [command for command in Inbox(run).pending() if isinstance(command, VerifyPoints)]
