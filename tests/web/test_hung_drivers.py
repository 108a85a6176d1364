"""A hung driver is shown, killed or fenced off, and replaced; a live one is left alone.

Drivers are real processes with real leases, journals and signs of life, without Spark. The tests
run the rounds of supervision themselves, with their own clock.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from itertools import count
from pathlib import Path

import msgspec
import psutil
import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import DesiredState, Failure, Run
from ftdash.projection.projector import Projector
from ftdash.supervision import drivers as supervision
from ftdash.supervision import launcher
from ftdash.supervision.drivers import DriverWatches
from pipelines.bus.journal import read_journal
from pipelines.bus.lease import Owner, newest_sign, owner_of
from pipelines.domain.events import DriverReplaced, RunStarted
from pipelines.domain.run import DriverSign, RunDirectory
from pipelines.protocol.driver_watch import Lives, Silent
from tests.polling import wait_until
from tests.stopped_processes import wait_until_stopped
from tests.web.journals import new_run

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

FAKE_DRIVER = Path(__file__).with_name("fake_driver.py")
ROOT = Path(__file__).parents[2]
STEP_S = 60.0
ROUND_MS = 2_000.0
ROUNDS_TO_REPLACE = 11  # of 2 s, with the default of 20 s: the first one starts the count
EXIT_LEASE_HELD = 3


class Rounds:
    """Rounds of supervision over one run, 2 s apart by its own clock."""

    def __init__(self, run: Run) -> None:
        self.now_ms = 0.0
        self._run = run

    def make(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.now_ms += ROUND_MS
            supervision.supervise_run(self._run.pk)
        self._run.refresh_from_db()


@pytest.fixture
def run(settings: LazySettings, site: Path) -> Iterator[Run]:
    settings.DRIVER_COMMAND = [sys.executable, str(FAKE_DRIVER)]
    settings.DRIVER_START_BACKOFF_S = 0.0
    run = new_run()
    yield run
    launcher.kill_driver_tree(run)


@pytest.fixture
def rounds(run: Run, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    rounds = Rounds(run)
    monkeypatch.setattr(supervision, "watches", DriverWatches(lambda: rounds.now_ms))
    return rounds


def test_a_stopped_driver_is_shown_and_then_killed_and_replaced(
    run: Run, rounds: Rounds, operator: Client
) -> None:
    rounds.make()
    hung = stopped(driver_of(run))

    rounds.make(4)
    shown = page(operator, reverse("pipeline", args=["flights"]))
    living = owner_of(run_directory(run))
    rounds.make(ROUNDS_TO_REPLACE - 4)
    successor = driver_of(run, other_than=hung.pid)

    assert "The driver has shown no sign of life for 6 s; it is replaced after 20 s" in shown
    assert living is not None, "it was replaced too early"
    assert living.pid == hung.pid
    assert not is_alive(hung)
    assert (run.driver_start_count, run.launched_pid) == (2, successor.pid)
    assert "had shown no sign of life for 20 s" in run.driver_note
    assert "was killed; another one is starting" in run.driver_note
    (replaced,) = events(run, DriverReplaced)
    assert (replaced.pid, replaced.was_killed, replaced.silent_ms) == (hung.pid, True, 20_000)
    Projector().run_once()
    assert Failure.objects.filter(run=run, cause=replaced.reason).exists()
    assert "had shown no sign of life for 20 s" in page(operator, reverse("event-log"))
    rounds.make(2)
    assert run.driver_silence == ""


def test_a_driver_that_cannot_be_killed_is_fenced_off_and_ends_when_it_resumes(
    run: Run, rounds: Rounds
) -> None:
    with driver_elsewhere(run) as process:
        first = driver_of(run)
        assert first.pid == process.pid
        stopped(first)
        rounds.make(ROUNDS_TO_REPLACE)
        driver_of(run, other_than=first.pid)

        os.kill(first.pid, signal.SIGCONT)
        code = process.wait(STEP_S)

    (replaced,) = events(run, DriverReplaced)
    assert (code, replaced.was_killed) == (EXIT_LEASE_HELD, False)
    assert "was fenced off" in replaced.reason
    owner = owner_of(run_directory(run))
    assert owner is not None
    assert owner.pid == run.launched_pid
    assert [type(each) for each in all_events(run)].count(RunStarted) == 2


def test_no_driver_is_replaced_after_the_machine_slept(run: Run, rounds: Rounds) -> None:
    rounds.make()
    driver = driver_of(run)
    rounds.make()

    rounds.now_ms += 8 * 3_600_000
    rounds.make()
    newest = sign_of(run).sequence
    wait_until(lambda: sign_of(run).sequence > newest, within_s=STEP_S)
    rounds.make()

    assert driver_of(run).pid == driver.pid
    assert (run.driver_start_count, run.driver_silence) == (1, "")
    assert events(run, DriverReplaced) == []


def test_jumps_of_the_wall_clock_replace_no_driver(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(run)
    monkeypatch.setattr(supervision, "watches", DriverWatches())
    rounds.make()
    driver = stopped(driver_of(run))
    hours = count(time.time(), 3_600.0)
    monkeypatch.setattr(time, "time", lambda: next(hours))
    rounds.make(ROUNDS_TO_REPLACE + 1)

    found = owner_of(run_directory(run))
    assert found is not None
    assert found.pid == driver.pid


def test_an_unreadable_sign_of_life_replaces_no_driver(run: Run, rounds: Rounds) -> None:
    rounds.make()
    driver = driver_of(run)
    stopped(driver)
    run_directory(run).sign_file.unlink(missing_ok=True)
    run_directory(run).sign_file.mkdir()

    for _ in range(3 * ROUNDS_TO_REPLACE):
        with pytest.raises(IsADirectoryError):
            rounds.make()

    assert driver_of(run).pid == driver.pid


def test_a_driver_of_a_version_without_signs_is_left_alone(run: Run, rounds: Rounds) -> None:
    old = Owner(pid=1, process_began_s=0.0, host="here", acquired_at=0.0)
    watches = DriverWatches(lambda: rounds.now_ms)

    for _ in range(3 * ROUNDS_TO_REPLACE):
        rounds.now_ms += ROUND_MS
        assert watches.look(run, old) == Lives()


def test_a_silent_driver_is_not_replaced_before_its_slots_time_out(
    run: Run, rounds: Rounds
) -> None:
    """If the driver cannot be killed, its slots must have ended themselves by then."""
    run.settings = {"heartbeat.driver-timeout": "3 s", "heartbeat.timeout": "1 min"}
    owner = msgspec.structs.replace(Owner.this_process(), epoch=1)
    watches = DriverWatches(lambda: rounds.now_ms)

    watches.look(run, owner)
    for _ in range(29):
        rounds.now_ms += ROUND_MS
        found = watches.look(run, owner)

    assert isinstance(found, Silent)
    assert found.limit_ms == 60_000


def test_a_process_that_reused_the_id_of_a_dead_driver_is_not_killed() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        owner = Owner.this_process(epoch=1)
        gone = msgspec.structs.replace(owner, pid=bystander.pid, process_began_s=1.0)

        is_gone = launcher.kill_driver(gone)

        assert is_gone
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(STEP_S)


def test_a_driver_on_another_machine_is_not_killed_here() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        owner = Owner.this_process(epoch=1)
        began = supervision.began_after_boot_s(bystander.pid)
        elsewhere = msgspec.structs.replace(
            owner, pid=bystander.pid, process_began_s=began, home="another machine"
        )

        is_gone = launcher.kill_driver(elsewhere)

        assert not is_gone
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(STEP_S)


def test_a_cancelled_run_with_a_hung_driver_gets_no_new_driver(run: Run, rounds: Rounds) -> None:
    rounds.make()
    hung = stopped(driver_of(run))
    Run.objects.update(desired=DesiredState.STOPPED, stop_requested_at=timezone.now())

    rounds.make(ROUNDS_TO_REPLACE + 1)
    Projector().run_once()

    run.refresh_from_db()
    assert not is_alive(hung)
    assert (run.driver_start_count, run.status) == (1, "CANCELED")


def test_two_workers_that_find_a_hung_driver_start_one_replacement(
    run: Run, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.make()
    hung = stopped(driver_of(run))
    owner, found = owner_of(run_directory(run)), None
    rounds.make(ROUNDS_TO_REPLACE - 1)
    seen = [Run.objects.select_related("pipeline").get(pk=run.pk) for _ in range(2)]
    rounds.now_ms += ROUND_MS
    assert owner is not None
    found = supervision.watches.look(run, owner)

    for each in seen:
        supervision._replace(each, owner, found)

    driver_of(run, other_than=hung.pid)
    run.refresh_from_db()
    assert run.driver_start_count == 2
    assert len(events(run, RunStarted)) == 2
    assert len(events(run, DriverReplaced)) == 1


@contextmanager
def driver_elsewhere(run: Run) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a driver as if on another machine, whose process ids mean nothing here."""
    directory = run_directory(run)
    directory.path.mkdir(parents=True, exist_ok=True)
    spec = msgspec.json.encode(launcher._spec(run))
    directory.spec_file.write_bytes(spec)
    command = [sys.executable, str(FAKE_DRIVER), str(directory.path), "another machine"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait(STEP_S)


def driver_of(run: Run, *, other_than: int = 0) -> psutil.Process:
    """Returns the run's driver once it has given a sign of life and begun its work."""
    directory = run_directory(run)

    def is_up() -> bool:
        owner, sign = owner_of(directory), newest_sign(directory)
        return (
            owner is not None
            and owner.pid not in (other_than, os.getpid())
            and sign is not None
            and sign.epoch == owner.epoch
            and owner.pid in [started.driver_pid for started in events(run, RunStarted)]
        )

    if directory.sign_file.is_dir():
        return psutil.Process(owner_pid(directory))
    wait_until(is_up, within_s=STEP_S)
    return psutil.Process(owner_pid(directory))


def owner_pid(directory: RunDirectory) -> int:
    owner = owner_of(directory)
    assert owner is not None
    return owner.pid


def stopped(driver: psutil.Process) -> psutil.Process:
    os.kill(driver.pid, signal.SIGSTOP)
    wait_until_stopped(driver, STEP_S)
    return driver


def sign_of(run: Run) -> DriverSign:
    sign = newest_sign(run_directory(run))
    assert sign is not None
    return sign


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def page(client: Client, address: str) -> str:
    return unescape(client.get(address).content.decode())


def all_events(run: Run) -> list[object]:
    return [each.event for each in read_journal(run_directory(run).journal_file, 0)[0]]


def events(run: Run, kind: type) -> list:
    return [each for each in all_events(run) if isinstance(each, kind)]
