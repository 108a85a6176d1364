"""Supervision: each wanted run has one driver, others end, and no process waits for ever.

Drivers are real processes with real leases, journals and inboxes, without Spark.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.utils import timezone

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import DesiredState, Request, RequestPhase, Run
from ftdash.metrics.models import Heartbeat
from ftdash.projection.projector import Projector
from ftdash.requests.services import ask
from ftdash.runs.fleet_answers import Concern
from ftdash.runs.queries.fleet import fleet
from ftdash.runs.queries.freshness import ShownState
from ftdash.runs.queries.pipelines import pipeline_page
from ftdash.supervision import drivers, launcher
from ftdash.supervision import drivers as supervision
from pipelines.bus.inbox import Inbox, submit
from pipelines.bus.journal import last_event, read_journal
from pipelines.bus.lease import Lease, owner_of
from pipelines.domain.commands import Cancel, RetryNow, StartPipeline, TakeSavepoint
from pipelines.domain.errors import Rejected
from pipelines.domain.events import RunEnded, RunStarted
from pipelines.domain.ids import RequestId
from pipelines.domain.status import JobStatus
from tests.polling import wait_until
from tests.web.journals import Story, new_request, new_run

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

FAKE_DRIVER = Path(__file__).with_name("fake_driver.py")


@pytest.fixture(autouse=True)
def installation(settings, tmp_path: Path) -> Iterator[None]:
    settings.JOBS_ROOT = tmp_path
    settings.DRIVER_COMMAND = [sys.executable, str(FAKE_DRIVER)]
    settings.DRIVER_START_BACKOFF_S = 0.0
    yield
    for run in Run.objects.select_related("pipeline"):
        launcher.kill_driver_tree(run)


def test_a_run_without_a_driver_gets_exactly_one() -> None:
    run = new_run()
    request = new_request(run, StartPipeline(parallelism=2))

    for _ in range(3):
        supervision.supervise_run(run.pk)
    wait_until(lambda: is_running(run))
    supervision.reconcile()

    run.refresh_from_db()
    request.refresh_from_db()
    assert run.driver_start_count == 1
    assert started_drivers(run) == 1
    assert request.phase == RequestPhase.SUCCEEDED
    assert run.launched_pid == owner_pid(run)


def test_two_workers_that_decide_to_start_a_driver_start_only_one() -> None:
    run = new_run()
    seen_by_both = [Run.objects.select_related("pipeline").get(pk=run.pk) for _ in range(2)]

    supervision._start(seen_by_both[0])
    wait_until(lambda: is_running(run))
    winner = owner_pid(run)
    supervision._start(seen_by_both[1])

    run.refresh_from_db()
    assert (run.driver_start_count, run.launched_pid) == (1, winner)
    assert owner_pid(run) == winner  # the loser has not cleared it away as a leftover


def test_a_run_that_was_cancelled_since_it_was_read_is_not_started() -> None:
    run = new_run()
    seen = Run.objects.select_related("pipeline").get(pk=run.pk)
    Run.objects.update(desired=DesiredState.STOPPED)

    supervision._start(seen)

    run.refresh_from_db()
    assert (run.driver_start_count, run.launched_pid) == (0, None)


def test_a_driver_outlives_its_worker_and_leaves_no_zombie() -> None:
    run = new_run()
    supervision.supervise_run(run.pk)
    wait_until(lambda: is_running(run))
    pid = owner_pid(run)
    assert os.getsid(pid) == pid  # a session of its own: signals to the worker's session miss it

    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: not psutil.pid_exists(pid))


def test_a_killed_driver_is_replaced_in_the_same_run() -> None:
    run = new_run()
    supervision.supervise_run(run.pk)
    wait_until(lambda: is_running(run))
    first = owner_pid(run)
    os.kill(first, signal.SIGKILL)

    wait_until(lambda: reconciled(lambda: owner_pid(run) not in (0, first)))

    wait_until(lambda: started_drivers(run) == 2)
    run.refresh_from_db()
    assert run.driver_start_count == 2
    assert "The driver is gone; another one is starting" in run.driver_note


def test_a_run_whose_drivers_keep_dying_fails_with_their_last_log_line(settings) -> None:
    settings.DRIVER_STARTS_MAX = 3
    run = new_run(parameters={"behaviour": "dies"})
    request = new_request(run, StartPipeline(parallelism=2))

    wait_until(lambda: reconciled(lambda: status_of(run) == "FAILED"))

    run.refresh_from_db()
    request.refresh_from_db()
    assert run.driver_start_count == 3
    assert "3 drivers in a row ended before a checkpoint completed" in run.reason
    assert "No Java was found." in run.reason
    assert (request.phase, request.message) == (RequestPhase.FAILED, run.reason)


def test_a_completed_checkpoint_resets_the_count_of_driver_starts() -> None:
    run = new_run(
        driver_starts_in_row=9,
        driver_started_at=timezone.now() - timedelta(seconds=5),
        last_completed_at=timezone.now(),
    )

    assert supervision.needed_repair(run, timezone.now()) is supervision.Repair.START
    assert supervision._starts_in_row(run) == 0


def test_each_start_of_a_driver_waits_longer_up_to_a_limit(settings) -> None:
    settings.DRIVER_START_BACKOFF_S = 2.0
    now = timezone.now()
    run = new_run(driver_starts_in_row=3, driver_started_at=now)

    assert supervision._next_start_at(run, now) == now + timedelta(seconds=8)
    assert supervision.needed_repair(run, now) is supervision.Repair.WAIT
    later = now + timedelta(seconds=8)
    assert supervision.needed_repair(run, later) is supervision.Repair.START
    run.driver_starts_in_row = 50
    assert supervision._next_start_at(run, now) == now + timedelta(seconds=30)


def test_the_wait_before_another_driver_is_shown_and_a_person_may_end_it(settings) -> None:
    settings.DRIVER_START_BACKOFF_S = 600.0
    settings.DRIVER_START_BACKOFF_MAX_S = 600.0
    run = new_run(driver_starts_in_row=1, driver_start_count=1, driver_started_at=timezone.now())
    Story(run).started()
    Projector().run_once()

    supervision.supervise_run(run.pk)
    run.refresh_from_db()
    due_at = run.driver_due_at
    supervision.supervise_run(run.pk)

    run.refresh_from_db()
    assert due_at is not None
    assert run.goes_on_at == run.driver_due_at == due_at, "it does not wait longer and longer"
    assert due_at - timezone.now() > timedelta(seconds=500)
    page = pipeline_page("flights")
    assert page is not None
    assert page.run is not None
    assert (page.run.restart_at, page.actions[RetryNow.kind].is_possible) == (due_at, True)

    request_id = ask("flights", RetryNow(), who="ada", why="the disk is there again")
    supervision.supervise_run(run.pk)
    wait_until(lambda: is_running(run))

    answered = Request.objects.get(request_id=request_id)
    assert (answered.phase, answered.message) == ("SUCCEEDED", "Another driver starts now.")
    run.refresh_from_db()
    assert (run.driver_due_at, run.driver_waits_since) == (None, None)
    assert run.driver_starts_in_row == 2, "what has died before still counts"


def test_a_driver_that_comes_up_late_ends_the_wait_for_another_one() -> None:
    """A busy machine may take longer than the grace of a start."""
    now = timezone.now()
    run = new_run(driver_due_at=now, driver_waits_since=now - timedelta(seconds=1))
    Story(run).started()
    Projector().run_once()

    (heard,) = fleet().pipelines
    with Lease.acquire(run_directory(run)):
        supervision.supervise_run(run.pk)

    run.refresh_from_db()
    assert (heard.state, heard.concern) == (ShownState.RUNNING, Concern.NONE)
    assert (run.goes_on_at, run.driver_waits_since) == (None, None)


def test_a_lost_driver_is_reported_while_another_one_is_due() -> None:
    now = timezone.now()
    run = new_run(driver_due_at=now + timedelta(seconds=9))
    Story(run).started()
    Projector().run_once()
    type(run).objects.update(driver_waits_since=timezone.now() + timedelta(milliseconds=2))

    (found,) = fleet().pipelines

    assert (found.state, found.concern) == (ShownState.STALE, Concern.DRIVER_LOST)


def test_a_run_that_has_ended_gets_no_driver_even_before_it_is_projected() -> None:
    run = new_run()
    Story(run).started().ended()

    supervision.supervise_run(run.pk)

    run.refresh_from_db()
    assert run.status == "CREATED"
    assert run.driver_start_count == 0


def test_a_cancelled_run_whose_driver_is_dead_is_closed_without_starting_one() -> None:
    run = new_run(desired=DesiredState.STOPPED, stop_requested_at=timezone.now())
    cancel = new_request(run, Cancel())
    Story(run).started()

    supervision.reconcile()
    Projector().run_once()

    run.refresh_from_db()
    cancel.refresh_from_db()
    assert (run.status, run.driver_start_count) == ("CANCELED", 0)
    assert cancel.phase == RequestPhase.SUCCEEDED


def test_closing_a_run_twice_writes_one_end() -> None:
    run = new_run(desired=DesiredState.STOPPED)
    Story(run).started()

    supervision._close(run, JobStatus.CANCELED, "Canceled.")
    supervision._close(run, JobStatus.CANCELED, "Canceled.")

    events = [each.event for each in read_journal(run_directory(run).journal_file, 0)[0]]
    assert sum(isinstance(event, RunEnded) for event in events) == 1


def test_closing_a_run_that_has_a_driver_writes_no_end_into_its_journal() -> None:
    run = new_run(desired=DesiredState.STOPPED)
    Story(run).started()

    with Lease.acquire(run_directory(run)):
        supervision._close(run, JobStatus.CANCELED, "Canceled.")

    assert not isinstance(last_event(run_directory(run).journal_file), RunEnded)


def test_a_driver_that_ignores_a_stop_is_killed_after_the_grace_period(settings) -> None:
    run = new_run(parameters={"behaviour": "deaf"})
    supervision.supervise_run(run.pk)
    wait_until(lambda: is_running(run))
    pid = owner_pid(run)
    asked_at = timezone.now()
    Run.objects.update(desired=DesiredState.STOPPED, stop_requested_at=asked_at)

    supervision.reconcile()
    assert psutil.pid_exists(pid)

    settings.DRIVER_STOP_GRACE_S = 0.0
    wait_until(lambda: reconciled(lambda: status_of(run) == "CANCELED"))
    assert not psutil.pid_exists(pid)


def test_killing_the_leftovers_of_a_run_spares_other_runs() -> None:
    ours, others = new_run("ours"), new_run("others")
    for run in (ours, others):
        supervision.supervise_run(run.pk)
        wait_until(lambda run=run: is_running(run))
    pid, other_pid = owner_pid(ours), owner_pid(others)

    assert launcher.kill_driver_tree(ours) == [pid]

    assert not psutil.pid_exists(pid)
    assert psutil.pid_exists(other_pid)


def test_a_second_look_finds_a_process_that_was_just_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = new_run()
    known, starting = TwoLooks(run.run_id), TwoLooks(None, run.run_id)
    monkeypatch.setattr(psutil, "process_iter", lambda: iter([known, starting]))
    monkeypatch.setattr(psutil, "wait_procs", lambda *_, **__: None)

    launcher.kill_driver_tree(run)

    assert (known.is_killed, starting.is_killed) == (True, True)


def test_a_request_reaches_its_driver_and_is_answered() -> None:
    run = new_run()
    supervision.supervise_run(run.pk)
    wait_until(lambda: is_running(run))
    request = new_request(run)

    drivers.deliver(request.pk)
    drivers.deliver(request.pk)

    wait_until(lambda: phase_of(request) == RequestPhase.SUCCEEDED)


def test_a_request_whose_message_was_lost_is_delivered_by_reconcile() -> None:
    run = new_run()
    Story(run).started()
    Projector().run_once()
    earlier = timezone.now() - timedelta(seconds=5)
    request = new_request(run, created_at=earlier)

    with Lease.acquire(run_directory(run)):
        supervision.reconcile()

    request.refresh_from_db()
    assert request.phase == RequestPhase.DELIVERED
    (command,) = Inbox(run_directory(run)).pending()
    assert isinstance(command, TakeSavepoint)
    assert (command.requested_by, command.reason) == ("ann", "upgrade")


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        (RequestPhase.PENDING, "No worker delivered it within 2 min 05 s; it was withdrawn."),
        (
            RequestPhase.DELIVERED,
            "The driver did not take it up within 2 min 05 s; it was withdrawn.",
        ),
        (
            RequestPhase.ACCEPTED,
            "The driver did not finish it within 2 min 05 s; it may still end.",
        ),
    ],
)
def test_an_overdue_request_fails_with_the_reason_and_is_withdrawn(
    phase: RequestPhase, sentence: str
) -> None:
    run = new_run()
    now = timezone.now()
    request = new_request(
        run,
        phase=phase,
        created_at=now - timedelta(seconds=126),
        deadline_at=now - timedelta(seconds=1),
    )
    directory, request_id = run_directory(run), RequestId(request.request_id)
    command = TakeSavepoint(request_id=request_id, requested_by="ann", reason="upgrade")
    submit(directory, command)

    drivers.end_overdue()

    request.refresh_from_db()
    assert (request.phase, request.message) == (RequestPhase.FAILED, sentence)
    expected = [command] if phase == RequestPhase.ACCEPTED else []
    assert Inbox(directory).pending() == expected


def test_a_request_to_a_run_that_has_ended_fails() -> None:
    run = new_run(status="FINISHED", reason="The sources have ended.")
    request = new_request(run)

    drivers.deliver(request.pk)

    request.refresh_from_db()
    assert request.phase == RequestPhase.FAILED
    assert request.message == "The run ended first: The sources have ended."


@pytest.mark.parametrize(
    "trouble",
    [
        OSError("no space left on device"),
        psutil.NoSuchProcess(4711),  # a driver that ended as soon as it was started
        Rejected("no Java was found"),
    ],
)
def test_reconcile_sends_its_heartbeat_even_if_a_run_cannot_be_supervised(
    monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    new_run("first")
    second = new_run("second")

    def fail_first(run: Run, *, waited_ms: float) -> psutil.Process:
        assert waited_ms == 0.0
        if run.pipeline.name == "first":
            raise trouble
        return psutil.Process()

    monkeypatch.setattr(launcher, "start_driver", fail_first)
    supervision.reconcile()

    second.refresh_from_db()
    assert second.launched_pid == os.getpid()
    assert str(trouble) in Run.objects.get(pipeline__name="first").driver_note
    assert Heartbeat.objects.filter(name="reconcile").exists()


def test_a_journal_that_cannot_be_read_holds_up_no_other_run() -> None:
    damaged, sound = new_run("damaged"), new_run("sound")
    journal = run_directory(damaged).journal_file
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b"{broken\n")

    supervision.reconcile()

    sound.refresh_from_db()
    assert sound.driver_start_count == 1
    assert Heartbeat.objects.filter(name="reconcile").exists()


def test_a_request_that_cannot_be_delivered_or_withdrawn_holds_up_no_other() -> None:
    blocked, open_ = new_run("blocked"), new_run("open")
    inbox = run_directory(blocked).requests
    inbox.parent.mkdir(parents=True)
    inbox.write_text("no directory")
    now = timezone.now()
    long_ago = {"created_at": now - timedelta(hours=1)}
    waiting = [new_request(run, **long_ago) for run in (blocked, open_)]

    drivers.deliver_forgotten()
    delivered = [phase_of(request) for request in waiting]
    Request.objects.update(deadline_at=now - timedelta(seconds=1))
    drivers.end_overdue()

    assert delivered == [RequestPhase.PENDING, RequestPhase.DELIVERED]
    assert phase_of(waiting[1]) == RequestPhase.FAILED
    assert Inbox(run_directory(open_)).pending() == []


def reconciled(holds: Callable[[], bool]) -> bool:
    supervision.reconcile()
    Projector().run_once()
    return holds()


def is_running(run: Run) -> bool:
    Projector().run_once()
    return status_of(run) == "RUNNING"


def status_of(run: Run) -> str:
    return Run.objects.values_list("status", flat=True).get(pk=run.pk)


def phase_of(request: Request) -> str:
    Projector().run_once()
    return Request.objects.values_list("phase", flat=True).get(pk=request.pk)


def owner_pid(run: Run) -> int:
    owner = owner_of(run_directory(run))
    return owner.pid if owner else 0


def started_drivers(run: Run) -> int:
    envelopes, _ = read_journal(run_directory(run).journal_file, 0)
    return sum(isinstance(each.event, RunStarted) for each in envelopes)


class TwoLooks:
    """A process whose environment names the next of these runs each time it is read."""

    def __init__(self, *run_ids: str | None) -> None:
        self.pid = 1
        self.is_killed = False
        self._run_ids = list(run_ids)

    def environ(self) -> dict[str, str]:
        if self.is_killed:
            raise psutil.NoSuchProcess(self.pid)
        found = self._run_ids.pop(0)
        return {} if found is None else {launcher.RUN_ID_VARIABLE: found}

    def kill(self) -> None:
        self.is_killed = True
