"""The lease: one driver per run, however the last one died, and attempt numbers never repeat."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest

from pipelines.bus import lease as lease_module
from pipelines.bus.lease import ATTEMPTS_KEPT, Lease, LeaseHeld, LeaseLost, Owner, owner_of
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.run import RunDirectory
from tests.unit.storage.disks import DurableDisk

ROOT = Path(__file__).parents[3]
HOLD = """
import sys, time
from pathlib import Path
from pipelines.bus.lease import Lease
from pipelines.domain.run import RunDirectory
lease = Lease.acquire(RunDirectory(Path(sys.argv[1])))
lease.next_attempt()
if sys.argv[2] == "forks":
    import os
    if os.fork() == 0:
        time.sleep(60)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.of(tmp_path, "flights", RunId("r1"))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.slow
def test_a_living_driver_keeps_every_other_driver_out(
    directory: RunDirectory, processes: list
) -> None:
    holder = hold(directory, processes)

    with pytest.raises(LeaseHeld, match=f"process {holder.pid} on "):
        Lease.acquire(directory)

    owner = owner_of(directory)
    assert owner is not None
    assert owner.pid == holder.pid


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "forks"])
def test_a_killed_driver_holds_nothing_even_if_its_children_live(
    directory: RunDirectory, processes: list, way: str
) -> None:
    holder = hold(directory, processes, way)
    os.kill(holder.pid, 9)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)

    assert owner_of(directory) is None

    with Lease.acquire(directory) as lease:
        assert lease.next_attempt() == 2


def test_attempt_numbers_only_grow_across_drivers(directory: RunDirectory) -> None:
    with Lease.acquire(directory) as first:
        numbers = [first.next_attempt(), first.next_attempt()]
    with Lease.acquire(directory) as second:
        numbers.append(second.next_attempt())

    assert numbers == [1, 2, 3]


def test_attempt_numbers_do_not_repeat_after_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    disk = DurableDisk(monkeypatch, tmp_path / "disk")
    directory = RunDirectory.of(tmp_path / "disk", "flights", RunId("r1"))
    with Lease.acquire(directory) as before:
        numbers = [before.next_attempt(), before.next_attempt()]

    disk.lose_power()

    with Lease.acquire(directory) as after:
        numbers.append(after.next_attempt())
    assert numbers == [1, 2, 3]


def test_files_that_are_not_attempt_numbers_are_ignored(directory: RunDirectory) -> None:
    with Lease.acquire(directory) as lease:
        lease.next_attempt()
        (directory.attempts / ".nfs000123").touch()

        assert lease.next_attempt() == 2


def test_only_the_files_of_the_newest_attempts_are_kept(directory: RunDirectory) -> None:
    with Lease.acquire(directory) as lease:
        numbers = [lease.next_attempt() for _ in range(3 * ATTEMPTS_KEPT)]

        left = sorted(int(path.name) for path in directory.attempts.iterdir())

    assert numbers == list(range(1, 3 * ATTEMPTS_KEPT + 1))
    assert left == numbers[-ATTEMPTS_KEPT:]


def test_an_attempt_number_is_not_reused_after_its_file_is_deleted(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver looks up the newest number and is stopped; meanwhile others take many numbers."""
    zombie, others = Lease.acquire(directory), Lease(directory, os.open(os.devnull, os.O_RDONLY))
    looked_for, theirs = lease_module._newest_attempt(directory), list[Attempt]()

    def newest(run_directory: RunDirectory) -> Attempt:
        monkeypatch.undo()
        theirs.extend(others.next_attempt() for _ in range(2 * ATTEMPTS_KEPT))
        return looked_for

    monkeypatch.setattr(lease_module, "_newest_attempt", newest)
    number = zombie.next_attempt()

    assert not (directory.attempts / str(theirs[0])).exists(), "or nothing would be shown here"
    assert number > max(theirs)
    zombie.close()
    others.close()


def test_an_attempt_is_current_until_the_next_is_numbered(directory: RunDirectory) -> None:
    with Lease.acquire(directory) as lease:
        first = lease.next_attempt()
        assert lease.is_current(first)

        second = lease.next_attempt()

        assert not lease.is_current(first)
        assert lease.is_current(second)


def test_a_driver_whose_run_was_taken_over_is_not_current(directory: RunDirectory) -> None:
    zombie = Lease.acquire(directory)
    attempt = zombie.next_attempt()
    (directory.attempts / "2").touch()  # as its successor does, under any lock

    assert not zombie.is_current(attempt)
    assert zombie.next_attempt() == 3


def test_a_closed_lease_gives_no_rights(directory: RunDirectory) -> None:
    with Lease.acquire(directory) as lease:
        attempt = lease.next_attempt()

    assert not lease.is_current(attempt)
    with pytest.raises(InvariantViolated):
        lease.next_attempt()


def test_no_attempt_number_is_given_out_twice_in_a_race(directory: RunDirectory) -> None:
    lease = Lease.acquire(directory)

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: lease.next_attempt(), range(64)))

    assert sorted(numbers) == [Attempt(number) for number in range(1, 65)]
    lease.close()


def test_asking_for_the_owner_does_not_keep_a_driver_out(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe releases the lock only after the driver has been refused once."""
    directory.path.mkdir(parents=True)
    probe = os.open(directory.lease_lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(probe, fcntl.LOCK_SH)
    flock, refused = fcntl.flock, list[int]()

    def flock_beside_a_probe(descriptor: int, operation: int) -> None:
        try:
            flock(descriptor, operation)
        except BlockingIOError:
            refused.append(operation)
            os.close(probe)
            raise

    monkeypatch.setattr(fcntl, "flock", flock_beside_a_probe)

    with Lease.acquire(directory) as lease:
        assert refused == [fcntl.LOCK_EX | fcntl.LOCK_NB]
        assert lease.next_attempt() == 1


def test_a_process_that_reuses_a_dead_drivers_pid_is_not_the_owner(
    directory: RunDirectory,
) -> None:
    lease = Lease.acquire(directory)
    itself = Owner.this_process()
    impostor = msgspec.structs.replace(itself, process_began_s=itself.process_began_s - 60.0)

    assert owner_of(directory) is not None

    directory.lease_file.write_bytes(msgspec.json.encode(impostor))

    assert owner_of(directory) is None
    lease.close()


@pytest.mark.parametrize(
    "record", [b'{"pid": 1, "host": "here"}', b'{"pid"', b"", b'{"host": "\xff"}']
)
def test_an_unreadable_lease_record_names_no_owner(directory: RunDirectory, record: bytes) -> None:
    with Lease.acquire(directory):
        directory.lease_file.write_bytes(record)

        assert owner_of(directory) is None


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0])
def test_setting_the_clock_does_not_make_a_living_driver_look_dead(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    created = psutil.Process().create_time()
    with Lease.acquire(directory):
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: created + step_s)
        monkeypatch.setattr(time, "time", lambda: created + step_s)

        owner = owner_of(directory)

    assert owner is not None
    assert owner.pid == os.getpid()


@pytest.mark.slow
def test_a_fenced_off_driver_that_resumes_leaves_the_run_to_its_successor(
    directory: RunDirectory, processes: list
) -> None:
    holder = hold(directory, processes)
    os.kill(holder.pid, signal.SIGSTOP)
    owner = owner_of(directory)
    assert owner is not None

    Lease.take_over(directory, owner).close()

    with Lease.acquire(directory) as successor:
        os.kill(holder.pid, signal.SIGCONT)
        assert successor.next_attempt() == 2
        successor.check_held()
        assert psutil.pid_exists(holder.pid), "or it was not fenced, but gone"


def test_a_holder_that_was_fenced_off_has_lost_the_lease(directory: RunDirectory) -> None:
    with Lease.acquire(directory) as hung:
        attempt = hung.next_attempt()
        with Lease.take_over(directory, owned_by(directory)) as taken:
            taken.check_held()
            assert not hung.is_current(attempt)
            with pytest.raises(LeaseLost, match="this driver stops"):
                hung.check_held()
            with pytest.raises(LeaseLost):
                hung.next_attempt()
            with pytest.raises(LeaseHeld):
                Lease.acquire(directory)
        assert owner_of(directory) is None, "as if its lock still counted"


def test_a_driver_can_be_fenced_off_only_once(directory: RunDirectory) -> None:
    with Lease.acquire(directory):
        hung = owned_by(directory)
        Lease.take_over(directory, hung).close()

        with Lease.acquire(directory) as successor:
            with pytest.raises(LeaseHeld):
                Lease.take_over(directory, hung)
            successor.check_held()


@pytest.mark.parametrize("seed", range(20))
def test_one_holds_the_lease_when_many_take_over_and_acquire_at_once(
    directory: RunDirectory, seed: int
) -> None:
    hung = Lease.acquire(directory)
    owner, order = owned_by(directory), random.Random(seed)
    ways = [lambda: Lease.take_over(directory, owner), lambda: Lease.acquire(directory)] * 4
    order.shuffle(ways)

    with ThreadPoolExecutor(len(ways)) as pool:
        taken = [lease for lease in pool.map(taken_or_none, ways) if lease is not None]

    holders = [lease for lease in taken if holds(lease)]
    assert len(holders) == 1
    assert not holds(hung)
    for lease in (hung, *taken):
        lease.close()


def test_a_driver_that_waits_for_a_replaced_lock_does_not_get_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting driver has opened the old lock file; its holder dies when it is fenced off."""
    hung, flock = Lease.acquire(directory), fcntl.flock
    owner = owned_by(directory)

    def flock_late(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        Lease.take_over(directory, owner).close()
        hung.close()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with pytest.raises(LeaseHeld):
        Lease.acquire(directory)

    with Lease.acquire(directory) as successor:
        successor.check_held()


def test_every_owner_has_a_greater_epoch(directory: RunDirectory) -> None:
    epochs = []
    for _ in range(3):
        with Lease.acquire(directory) as lease:
            epochs.append(lease.epoch)
    with Lease.take_over(directory, owned_by(directory)) as lease:
        epochs.append(lease.epoch)

    assert epochs == [1, 2, 3, 4]


def test_an_owner_on_another_machine_is_judged_by_its_lock_not_by_its_pid(
    directory: RunDirectory,
) -> None:
    lease = Lease.acquire(directory)
    elsewhere = msgspec.structs.replace(Owner.this_process(epoch=1), home="another machine")
    directory.lease_file.write_bytes(msgspec.json.encode(elsewhere))

    assert owner_of(directory) == elsewhere
    assert elsewhere.process() is None

    lease.close()
    assert owner_of(directory) is None


def test_a_run_that_never_started_has_no_owner(directory: RunDirectory) -> None:
    assert owner_of(directory) is None


def owned_by(directory: RunDirectory) -> Owner:
    return msgspec.json.decode(directory.lease_file.read_bytes(), type=Owner)


def taken_or_none(way: Callable[[], Lease]) -> Lease | None:
    try:
        return way()
    except LeaseHeld:
        return None


def holds(lease: Lease) -> bool:
    try:
        lease.check_held()
    except LeaseLost:
        return False
    return True


def hold(directory: RunDirectory, processes: list, way: str = "plain") -> subprocess.Popen[str]:
    """Starts a process that holds the lease, in its own process group."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory.path), way],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_holder_whose_lock_file_vanished_stops_once_another_takes_over(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with Lease.acquire(directory) as first:
        attempt = first.next_attempt()
        directory.lease_lock.unlink()
        held_alone = first.is_current(attempt)

        with Lease.acquire(directory) as second:
            with pytest.raises(LeaseLost, match=f"taken over by process {os.getpid()}"):
                first.check_held()
            with pytest.raises(LeaseLost):
                first.next_attempt()
            assert (held_alone, first.is_current(attempt)) == (True, False)
            second.check_held()
            assert second.next_attempt() == attempt + 1
