"""A driver's signs of life move with its loop, and end when another driver has its run."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipelines.bus import lease as sign_file
from pipelines.bus.lease import Lease, LeaseLost, Owner, give_sign, newest_sign
from pipelines.domain.ids import RunId
from pipelines.domain.run import DriverSign, RunDirectory
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.master import signs_of_life
from pipelines.runtime.master.signs_of_life import ControlLoop, SignsOfLife
from tests.polling import wait_until

PATIENCE_S = 30.0


@pytest.fixture
def lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    monkeypatch.setattr(signs_of_life, "PERIOD_S", 0.001)
    with Lease.acquire(RunDirectory.of(tmp_path, "flights", RunId("r1"))) as held:
        yield held


def test_signs_report_the_progress_of_the_loop(lease: Lease) -> None:
    loop = ControlLoop(SystemClock())
    with SignsOfLife(lease, loop, unexpected):
        first = sign_after(lease, 0)
        loop.on_turn()
        loop.on_turn()
        later = sign_after(lease, first.sequence + 1)

    assert (first.epoch, later.epoch) == (lease.epoch, lease.epoch)
    assert (first.is_long_step, later.is_long_step) == (True, False)
    assert later.moves == first.moves + 2


def test_a_driver_gives_no_sign_once_another_driver_has_the_run(lease: Lease) -> None:
    found: list[LeaseLost] = []
    is_lost = threading.Event()

    def on_lost(lost: LeaseLost) -> None:
        found.append(lost)
        is_lost.set()

    with SignsOfLife(lease, ControlLoop(SystemClock()), on_lost) as signs:
        sign_after(lease, 0)
        owner = msgspec.json.decode(lease.run_directory.lease_file.read_bytes(), type=Owner)
        with Lease.take_over(lease.run_directory, owner) as successor:
            assert is_lost.wait(PATIENCE_S)
            signs.join(PATIENCE_S)
            theirs = DriverSign(epoch=successor.epoch, sequence=1, moves=1)
            give_sign(lease.run_directory, theirs)

            assert not signs.is_alive()
            assert newest_sign(lease.run_directory) == theirs

    assert len(found) == 1


def test_a_failed_write_of_a_sign_ends_neither_the_thread_nor_the_driver(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def refuse(*_: object) -> None:
        refused.set()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(signs_of_life, "give_sign", refuse)
    with SignsOfLife(lease, ControlLoop(SystemClock()), unexpected):
        assert refused.wait(PATIENCE_S)
        monkeypatch.setattr(signs_of_life, "give_sign", give_sign)
        sign_after(lease, 0)


def test_a_short_sign_fully_overwrites_a_long_one(lease: Lease) -> None:
    long = DriverSign(epoch=10**9, sequence=10**12, moves=10**12, is_long_step=True)
    short = DriverSign(epoch=1, sequence=1, moves=1)

    give_sign(lease.run_directory, long)
    give_sign(lease.run_directory, short)

    assert newest_sign(lease.run_directory) == short
    assert lease.run_directory.sign_file.stat().st_size == sign_file.SIGN_BYTES


def test_a_missing_or_torn_sign_reads_as_no_sign(lease: Lease) -> None:
    before = newest_sign(lease.run_directory)
    lease.run_directory.sign_file.write_bytes(b'{"epoch":1,"sequ')

    assert (before, newest_sign(lease.run_directory)) == (None, None)


def sign_after(lease: Lease, sequence: int) -> DriverSign:
    def newest() -> DriverSign | None:
        found = newest_sign(lease.run_directory)
        return found if found is not None and found.sequence > sequence else None

    wait_until(lambda: newest() is not None, within_s=PATIENCE_S)
    found = newest()
    assert found is not None
    return found


def unexpected(lost: LeaseLost) -> None:
    raise AssertionError(lost)
