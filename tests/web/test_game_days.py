"""A game day from the request to its verdict: refusals, targets, and stored rows."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from django.utils import timezone
from kombu.exceptions import OperationalError

from ftdash import errands, tasks
from ftdash.accounts.models import AdminAction
from ftdash.accounts.queries import admin_actions, verify_log
from ftdash.checkpoints.models import Audit
from ftdash.gameday import queries, services
from ftdash.gameday.injection import (
    DRIVER_MOMENTS,
    KILLED_TWICE,
    MOMENTS,
    RECOVERY_MOMENTS,
    forbid_writing,
    identity_of,
    release,
)
from ftdash.gameday.models import Fault, GameDay, GameDayState, GameDayVerdict
from ftdash.gameday.queries import NOT_AUDITED, GameDayView
from ftdash.jobs.models import Pipeline, Request, RequestPhase, Run
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection.projector import Projector
from ftdash.requests.services import ask
from ftdash.supervision import drivers
from ftdash.supervision.launcher import RUN_ID_VARIABLE
from ftdash.times import moment
from ftdash.ui.gameday.page import findings
from pipelines.audit.report import Covers
from pipelines.bus.journal import UndecodableEvent
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import AllowFaults, KillDriver, KillSlot, RequestKind, SlowSlot
from pipelines.domain.errors import Rejected
from pipelines.domain.events import (
    CheckpointFailed,
    FailureOccurred,
    SubtaskAcknowledged,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.status import DriverKillMoment, JobStatus, KillMoment
from tests.web.audit_reports import DIFFERENCE, PROVEN, report_of
from tests.web.journals import Story, StoryClock, new_run, phases

pytestmark = pytest.mark.usefixtures("site", "patient")

PATIENCE_S = 20.0
ASKED = {"pipeline": "flights", "requester": "ada", "reason": "to see"}


@pytest.fixture
def process() -> Iterator[Callable[[str], psutil.Process]]:
    """Starts processes as a driver of a run would."""
    started: list[subprocess.Popen[bytes]] = []

    def start(run_id: str) -> psutil.Process:
        words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
        environment = {**os.environ, RUN_ID_VARIABLE: run_id}
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()  # until it has begun, its environment reads as empty
        return psutil.Process(child.pid)

    yield start
    for each in started:
        each.kill()
        each.communicate()


@pytest.fixture
def worker() -> Iterator[Callable[[], psutil.Process]]:
    """Starts processes whose command line looks like a Celery worker's."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> psutil.Process:
        program = "import sys; print('up', flush=True); sys.stdin.read()"
        words = [sys.executable, "-c", program, "celery", "worker"]
        it = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(it)
        assert it.stdout is not None
        it.stdout.readline()
        return psutil.Process(it.pid)

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_killed_slot_is_followed_until_an_audit_gives_the_verdict() -> None:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1)

    hit(key, story)
    request = Request.objects.get(kind=RequestKind.KILL_SLOT)
    assert request.command.parameters == {"slot": "1", "moment": "now"}
    assert (request.requester, request.reason) == ("ada", f"game day {key}: to see")
    assert carried_on(key).state is GameDayState.INJECTED

    fold(story.wait(50).slot_killed())
    assert carried_on(key).why == "No checkpoint was completed and committed since yet."

    fold(story.completed().completed())
    assert carried_on(key).state is GameDayState.AUDITING
    audited(Audit.objects.get(), up_to=3)
    day = carried_on(key)

    assert (day.state, day.verdict) == (GameDayState.ENDED, GameDayVerdict.PASSED)
    assert day.measures.detection_ms == 12.0
    assert day.measures.recovery_ms == 300.0
    assert (day.measures.restored_checkpoint_id, day.measures.records_replayed) == (2, 1234)
    assert Audit.objects.get().requester == f"game day {key}"
    assert queries.game_days().scores[0].passed == 1
    services.carry_on(key)  # a finished game day stays as it is
    assert queries.game_day(key) == day


def test_output_that_differs_from_the_record_fails_despite_a_good_recovery() -> None:
    key, _ = recovered()
    audited(Audit.objects.get(), up_to=3, differs=True)

    day = carried_on(key)

    assert (day.verdict, day.why) == (
        GameDayVerdict.FAILED,
        f"The output is not as recorded: {DIFFERENCE.what}",
    )


def test_a_replaced_run_stays_unproven_and_no_audit_is_started() -> None:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1)
    hit(key, story)
    story.answered(Request.objects.get()).wait(50)
    fold(story.slot_killed().completed().ended(JobStatus.CANCELED))
    new_run()

    day = carried_on(key)

    assert (day.state, day.verdict) == (GameDayState.ENDED, GameDayVerdict.UNPROVEN)
    assert day.why == "Run flights-2 took its place before its output was audited."
    assert not Audit.objects.exists()


def test_an_audit_under_way_is_awaited_when_another_run_begins() -> None:
    key, story = recovered()
    assert carried_on(key).audit_key is not None
    fold(story.answered(Request.objects.get()).ended(JobStatus.CANCELED))
    new_run()

    audited(Audit.objects.get(), up_to=3)

    assert carried_on(key).verdict is GameDayVerdict.PASSED


def test_an_audit_begun_before_the_recovery_does_not_prove_it() -> None:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1)
    hit(key, story)
    early = Audit.objects.create(run=story.run, requester="olaf", created_at=timezone.now())
    fold(story.wait(50).slot_killed().completed())
    Audit.objects.update(created_at=timezone.now() - timedelta(hours=1), moved_at=timezone.now())
    Audit.objects.update(started_at=timezone.now())

    assert carried_on(key).audit_key is None
    audited(early, up_to=2)
    carried_on(key)

    assert carried_on(key).audit_key not in (None, early.pk)


def test_a_proof_of_the_previous_run_does_not_count() -> None:
    key, _ = recovered()
    audited(Audit.objects.get(), up_to=3, of_run="flights-0")

    assert carried_on(key).verdict is GameDayVerdict.UNPROVEN


def test_a_kill_that_the_driver_refuses_did_not_happen() -> None:
    running()
    key = asked(Fault.KILL_SLOT_ALIGNING, slot=0)
    services.carry_on(key)
    Request.objects.update(phase=RequestPhase.FAILED, message="It ended before slot 0 aligned.")

    day = carried_on(key)

    assert (day.verdict, day.why) == (
        GameDayVerdict.NOT_HAPPENED,
        "It ended before slot 0 aligned.",
    )
    assert Request.objects.get().command.parameters["moment"] == "aligning"


@pytest.mark.parametrize("fault", [*MOMENTS, *DRIVER_MOMENTS, *RECOVERY_MOMENTS])
def test_the_driver_gets_until_the_next_checkpoint_for_a_kill_at_a_named_point(
    fault: Fault,
) -> None:
    running()
    Run.objects.update(settings={"execution.checkpointing.interval": "10 min"})
    key = asked(fault, slot=1)

    services.carry_on(key)

    request = Request.objects.get()
    command = request.command
    assert isinstance(command, KillSlot | KillDriver)
    assert fault.value.endswith(command.moment.name) or command.moment is KillMoment.NOW
    is_second = fault in (*KILLED_TWICE, *RECOVERY_MOMENTS)
    assert command.within_s == (120.0 if is_second or fault is Fault.KILL_SLOT else 720.0)
    assert (command.slot == 1) is (isinstance(command, KillSlot) or is_second)
    assert (request.requester, request.reason) == ("ada", f"game day {key}: to see")


@pytest.mark.parametrize("fault", [Fault.KILL_SLOT_ALIGNING, Fault.KILL_DRIVER_PUBLISHED])
def test_a_game_day_does_not_end_while_a_kill_may_still_happen(fault: Fault) -> None:
    running()
    key = asked(fault, slot=1)
    services.carry_on(key)
    GameDay.objects.update(injected_at=timezone.now() - timedelta(hours=1))
    waits = carried_on(key)

    why = "It did not come to it within 121 s; it is not killed any more."
    Request.objects.update(phase=RequestPhase.FAILED, message=why)
    day = carried_on(key)

    assert (waits.state, waits.verdict) == (GameDayState.INJECTED, None)
    assert (day.verdict, day.why) == (GameDayVerdict.NOT_HAPPENED, why)


def test_a_kill_that_was_never_delivered_ends_as_withdrawn() -> None:
    running()
    key = asked(Fault.KILL_SLOT, slot=1)
    services.carry_on(key)
    GameDay.objects.update(injected_at=timezone.now() - timedelta(hours=1))
    assert carried_on(key).verdict is None

    Request.objects.update(deadline_at=timezone.now())
    drivers.end_overdue()

    day = carried_on(key)
    assert day.verdict is GameDayVerdict.NOT_HAPPENED
    assert "it was withdrawn" in day.why


def test_every_moment_of_a_kill_is_a_fault_of_game_days() -> None:
    assert set(MOMENTS.values()) == set(KillMoment)
    assert set((DRIVER_MOMENTS | RECOVERY_MOMENTS).values()) == set(DriverKillMoment)


@pytest.mark.parametrize("fault", [*KILLED_TWICE, *RECOVERY_MOMENTS])
def test_a_kill_within_a_recovery_counts_after_the_driver_confirmed_it(fault: Fault) -> None:
    story = running()
    key = asked(fault, slot=1)
    hit(key, story)
    fold(story.wait(50).slot_killed().completed())
    assert carried_on(key).why == "The second kill has not been confirmed yet."

    Request.objects.update(phase=RequestPhase.SUCCEEDED)

    assert carried_on(key).state == GameDayState.AUDITING


@pytest.mark.parametrize(("fault", "further"), [(Fault.KILL_SLOT, 1), (Fault.KILL_SLOT_OPENED, 0)])
def test_a_second_kill_is_no_further_failure_if_the_fault_kills_twice(
    fault: Fault, further: int
) -> None:
    story = running()
    key = asked(fault, slot=1)
    hit(key, story)
    fold(story.wait(50).slot_killed().wait(50).slot_killed())

    assert carried_on(key).measures.further_failures == further


def test_a_failure_from_before_the_fault_is_not_its_effect() -> None:
    story = running()
    fold(story.slot_killed())
    key = asked(Fault.KILL_SLOT, slot=1)

    services.carry_on(key)
    early = moment(story.clock.now_ms - 5_000)  # the clock was set back
    GameDay.objects.update(injected_at=early)

    assert carried_on(key).state is GameDayState.INJECTED


def test_several_recoveries_in_a_row_count_from_the_first_failure() -> None:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1)
    hit(key, story)
    again = FailureOccurred(cause="Slot 0 is gone, too.", slot=0)
    fold(story.wait(50).tell(FailureOccurred(cause="Slot 1 is gone.", slot=1)))
    fold(story.wait(1_000).tell(again).slot_killed().completed())

    measures = carried_on(key).measures

    assert measures.further_failures == 2
    assert measures.detection_ms == 12.0


def test_late_messages_of_the_previous_attempt_are_counted() -> None:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1)
    hit(key, story)
    late = ZombieRefused(zombie_attempt=Attempt(1), what="slot 1 offered an acknowledgement")
    fold(story.wait(50).triggered().slot_killed().tell(late))

    assert carried_on(key).measures.late_refused == 1


def test_a_frozen_slot_is_continued_after_it_was_replaced(
    process: Callable[[str], psutil.Process],
) -> None:
    story = running()
    slot = process(story.run.run_id)
    longer = {"heartbeat.timeout": "600 s"}  # longer than this test; the slot is stopped as long
    Run.objects.update(slots={"1": {"pid": slot.pid, "host": "here"}}, settings=longer)
    key = asked(Fault.FREEZE_SLOT, slot=1)

    hit(key, story)
    wait_until(lambda: slot.status() == psutil.STATUS_STOPPED)
    fold(story.wait(50).slot_killed().completed())
    assert carried_on(key).why == "The process that was stopped has not ended yet."
    assert slot.status() == psutil.STATUS_STOPPED
    GameDay.objects.update(release_at=timezone.now())
    carried_on(key)
    wait_until(lambda: slot.status() != psutil.STATUS_STOPPED)
    slot.kill()
    wait_until(lambda: not slot.is_running() or slot.status() == psutil.STATUS_ZOMBIE)

    assert carried_on(key).state is GameDayState.AUDITING


def test_a_frozen_slot_is_continued_when_the_run_is_cancelled(
    process: Callable[[str], psutil.Process],
) -> None:
    story = running()
    slot = process(story.run.run_id)
    Run.objects.update(slots={"1": {"pid": slot.pid, "host": "here"}})
    key = asked(Fault.FREEZE_SLOT, slot=1)
    services.carry_on(key)
    wait_until(lambda: slot.status() == psutil.STATUS_STOPPED)
    fold(story.wait(50).ended(JobStatus.CANCELED))

    assert carried_on(key).verdict is GameDayVerdict.NOT_HAPPENED
    wait_until(lambda: slot.status() != psutil.STATUS_STOPPED)


def test_a_game_day_gives_a_frozen_slot_its_heartbeat_timeout_to_fail() -> None:
    running()
    Run.objects.update(settings={"heartbeat.timeout": "40 s"})
    key = asked(Fault.FREEZE_SLOT, slot=1)
    services.carry_on(key)  # there is no such process
    GameDay.objects.update(refusal="", injected_at=timezone.now() - timedelta(seconds=150))

    assert carried_on(key).verdict is None


def test_a_slot_that_cannot_write_is_released_once_a_checkpoint_failed(
    process: Callable[[str], psutil.Process],
) -> None:
    story = running()
    slot = process(story.run.run_id)
    allowed = slot.rlimit(psutil.RLIMIT_FSIZE)
    Run.objects.update(slots={"1": {"pid": slot.pid, "host": "here"}})
    key = asked(Fault.FULL_DISK, slot=1)

    hit(key, story)
    assert slot.rlimit(psutil.RLIMIT_FSIZE) == (0, allowed[1])
    assert carried_on(key).state is GameDayState.INJECTED
    assert slot.rlimit(psutil.RLIMIT_FSIZE) == (0, allowed[1])
    declined = CheckpointFailed(
        checkpoint_id=CheckpointId(3),
        reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
        message="File too large",
    )
    fold(story.wait(50).triggered().wait(20).tell(declined))
    day = carried_on(key)

    assert slot.rlimit(psutil.RLIMIT_FSIZE) == (allowed[1], allowed[1])
    assert day.why == "No checkpoint was completed and committed since yet."
    story.next_checkpoint = CheckpointId(4)
    fold(story.wait(50).completed())
    assert carried_on(key).state is GameDayState.AUDITING
    audited(Audit.objects.get(), up_to=4)
    day = carried_on(key)
    assert day.verdict is GameDayVerdict.PASSED
    assert (day.measures.detection_ms, day.measures.recovery_ms) == (70.0, None)
    assert day.measures.checkpoints_lost == 1
    assert day.seen is not None
    assert day.seen.cause == "Checkpoint 3 failed, and the run went on: File too large"
    assert "All subtasks ran again" not in str(findings(day.seen))


def test_a_slot_that_fails_because_it_cannot_write_is_followed_through_its_recovery() -> None:
    story = running()
    key = asked(Fault.FULL_DISK, slot=1)
    hit(key, story)  # there is no such process
    GameDay.objects.update(refusal="")
    fold(story.wait(50).slot_killed().completed())

    assert carried_on(key).measures.recovery_ms == 300.0


def test_a_failed_checkpoint_is_not_the_effect_of_a_kill() -> None:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1)
    hit(key, story)
    failed = CheckpointFailed(
        checkpoint_id=CheckpointId(3),
        reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
        message="It took too long.",
    )
    fold(story.wait(50).triggered().tell(failed))

    assert carried_on(key).state is GameDayState.INJECTED


def test_slow_storage_of_a_slot_shows_in_its_uploads_and_the_run_continues() -> None:
    story = running()
    Run.objects.update(settings={"execution.checkpointing.interval": "5 min"})
    key = asked(Fault.SLOW_STORAGE, slot=1)

    hit(key, story)
    command = Request.objects.get().command
    fold(story.wait(50).completed())
    assert carried_on(key).why == "Nothing has failed yet."
    slow = msgspec.structs.replace(phases("delays", 1), async_ms=3_100.0, acknowledged_ms=3_150.0)
    other = msgspec.structs.replace(phases("join", 0), async_ms=4_000.0, acknowledged_ms=4_050.0)
    number = story.next_checkpoint
    story.wait(50).triggered().wait(4_100)
    fold(story.tell(*(SubtaskAcknowledged(checkpoint_id=number, phases=p) for p in (other, slow))))
    assert carried_on(key).why == "No checkpoint was completed and committed since yet."
    story.next_checkpoint = CheckpointId(number + 1)
    fold(story.completed())
    assert carried_on(key).state is GameDayState.AUDITING
    audited(Audit.objects.get(), up_to=5)
    day = carried_on(key)

    assert isinstance(command, SlowSlot)
    assert (command.slot, command.delay_ms, command.for_ms) == (1, 3_000, 330_000)
    assert day.verdict is GameDayVerdict.PASSED
    assert day.seen is not None
    assert day.seen.cause == (
        "Slot 1 took 3.10 s to upload delays for checkpoint 4, and the run went on."
    )


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
def test_a_process_forbidden_to_write_gets_an_error_and_continues(tmp_path: Path) -> None:
    program = (
        "import sys; print('up', flush=True)\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        f"        open({str(tmp_path / 'file')!r}, 'ab', 0).write(b'x')\n"
        "        print('written', flush=True)\n"
        "    except OSError as error: print(error.strerror, flush=True)\n"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        told = [it.stdout.readline()]
        for change in (forbid_writing, lambda each: release(identity_of(each))):
            change(psutil.Process(it.pid))
            it.stdin.write("go\n")
            it.stdin.flush()
            told.append(it.stdout.readline())
        it.stdin.close()

    assert told == ["up\n", "File too large\n", "written\n"]


def test_the_driver_is_killed_from_outside(process: Callable[[str], psutil.Process]) -> None:
    story = running()
    driver = process(story.run.run_id)
    Run.objects.update(driver_pid=driver.pid)
    key = asked(Fault.KILL_DRIVER)

    services.carry_on(key)

    wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE)
    assert carried_on(key).state is GameDayState.INJECTED


def test_another_worker_takes_over_from_a_killed_one_and_the_run_continues(
    worker: Callable[[], psutil.Process],
) -> None:
    story, killed = running(), worker()
    watches(killed.pid)
    key = asked(Fault.KILL_WORKER)
    hit(key, story)
    wait_until(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)
    unwatched = carried_on(key)
    watches(killed.pid + 1, story, after_ms=10)
    carried_on(key)
    watches(killed.pid + 1, story, after_ms=900)
    fold(story.wait(50).completed())
    assert carried_on(key).state is GameDayState.AUDITING
    audited(Audit.objects.get(), up_to=3)
    day = carried_on(key)

    assert unwatched.why == "No worker watches yet."
    assert (day.verdict, day.why) == (
        GameDayVerdict.PASSED,
        "It recovered, and lost nothing and doubled nothing.",
    )
    assert day.seen is not None
    assert (day.measures.watched_again_ms, day.measures.recovery_ms) == (10.0, None)
    assert f"Worker process {killed.pid} is gone." in str(findings(day.seen))
    assert "A worker watches again after" in str(findings(day.seen))


def test_a_run_that_fails_after_its_worker_was_killed_has_not_passed(
    worker: Callable[[], psutil.Process],
) -> None:
    story, killed = running(), worker()
    watches(killed.pid)
    key = asked(Fault.KILL_WORKER)
    hit(key, story)
    wait_until(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)
    watches(killed.pid + 1, story, after_ms=10)
    fold(story.wait(50).slot_killed().completed())

    day = carried_on(key)

    assert day.verdict is GameDayVerdict.FAILED
    assert day.why.startswith("The run failed, which it must not for this: Slot 1 (pid 101)")


def test_a_round_of_the_same_worker_does_not_count_as_another_worker(
    worker: Callable[[], psutil.Process],
) -> None:
    story, alive = running(), worker()
    key = asked(Fault.KILL_WORKER)
    hit(key, story)  # no worker has watched yet
    watches(alive.pid, story, after_ms=10)
    identity = msgspec.to_builtins(identity_of(alive))
    GameDay.objects.update(refusal="", held=identity)

    assert carried_on(key).why == "Nothing has failed yet."
    assert GameDay.objects.get().watched_at is None


def test_a_new_worker_with_the_process_id_of_the_killed_one_counts(
    worker: Callable[[], psutil.Process],
) -> None:
    story, later = running(), worker()
    key = asked(Fault.KILL_WORKER)
    hit(key, story)  # no worker has watched yet
    watches(later.pid, story, after_ms=10)
    earlier = msgspec.structs.replace(identity_of(later), process_began_s=0.0)
    GameDay.objects.update(refusal="", held=msgspec.to_builtins(earlier))

    assert carried_on(key).measures.watched_again_ms == 10.0


GONE_PID = 2**22 + 5


@pytest.mark.parametrize(
    ("watching", "why"),
    [
        (lambda: None, "No worker has watched yet."),
        (
            lambda: GONE_PID,
            f"The worker that watches, process {GONE_PID}, is not on this machine, or is gone.",
        ),
        (os.getpid, "Process {pid} is no Celery worker; nothing was done."),
    ],
    ids=["nobody", "gone", "somebody else"],
)
def test_a_process_that_is_not_a_worker_is_not_killed(
    watching: Callable[[], int | None], why: str
) -> None:
    running()
    pid = watching()
    if pid is not None:
        watches(pid)
    key = asked(Fault.KILL_WORKER)

    services.carry_on(key)

    day = carried_on(key)
    assert (day.verdict, day.why) == (GameDayVerdict.NOT_HAPPENED, why.format(pid=pid))


@pytest.mark.parametrize("fault", [Fault.KILL_DRIVER, Fault.FREEZE_SLOT])
def test_a_process_of_another_run_is_left_alone(
    process: Callable[[str], psutil.Process], fault: Fault
) -> None:
    running()
    stranger = process("another-run")
    Run.objects.update(driver_pid=stranger.pid, slots={"1": {"pid": stranger.pid, "host": "x"}})
    key = asked(fault, slot=1)

    services.carry_on(key)

    day = carried_on(key)
    assert (day.verdict, "nothing was done" in day.why) == (GameDayVerdict.NOT_HAPPENED, True)
    assert stranger.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"slots": {}, "driver_pid": None}, "is not known at the moment"),
        ({"slots": {"1": {"pid": 2**22 + 5, "host": "x"}}}, "is not on this machine, or is gone"),
    ],
)
def test_a_missing_process_is_reported_and_the_fault_did_not_happen(
    columns: dict[str, Any], told: str
) -> None:
    running()
    Run.objects.update(**columns)
    key = asked(Fault.FREEZE_SLOT, slot=1)

    services.carry_on(key)

    day = carried_on(key)
    assert day.verdict is GameDayVerdict.NOT_HAPPENED
    assert told in day.why


def test_a_pipeline_that_does_not_allow_faults_is_not_hit() -> None:
    running()
    ask("flights", AllowFaults(allowed=False), who="ada", why="month's end")

    with pytest.raises(Rejected, match="does not allow faults on purpose; an admin may allow"):
        asked(Fault.KILL_SLOT, slot=0)

    assert not GameDay.objects.exists()
    told = Request.objects.get()
    assert (told.kind, told.phase, told.requester, told.reason) == (
        RequestKind.ALLOW_FAULTS,
        RequestPhase.SUCCEEDED,
        "ada",
        "month's end",
    )
    ask("flights", AllowFaults(allowed=True), who="ada", why="it is over")
    asked(Fault.KILL_SLOT, slot=0)


def test_a_new_pipeline_does_not_allow_faults() -> None:
    assert not Pipeline(name="new").allows_faults


def test_allowing_again_under_the_same_id_is_the_same_request() -> None:
    new_run()
    again = {"who": "ada", "why": "x", "request_id": "one"}

    first = ask("flights", AllowFaults(allowed=True), **again)

    assert ask("flights", AllowFaults(allowed=False), **again) == first
    assert Pipeline.objects.get().allows_faults


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"slot": 2}, "There is no slot 2"),
        ({"slot": None}, "Name the slot that is to be hit; there are 0 to 1."),
        ({"reason": " "}, "Say why"),
        ({"pipeline": "nothing"}, "There is no pipeline 'nothing'"),
    ],
)
def test_a_game_day_with_an_invalid_target_or_reason_is_refused(
    change: dict[str, Any], told: str
) -> None:
    running()

    with pytest.raises(Rejected, match=told) as refused:
        services.start_game_day(**{**ASKED, "fault": Fault.KILL_SLOT, "slot": 0, **change})

    entry = AdminAction.objects.get()
    assert str(entry) == f"ada tried to send a request to pipeline {(ASKED | change)['pipeline']}"
    assert (entry.detail, entry.refusal) == ("game day: kill a slot", str(refused.value))
    assert verify_log().is_whole


@pytest.mark.parametrize(
    ("fault", "slot", "told"),
    [
        (Fault.KILL_SLOT, 1, "kill a slot, slot=1"),
        (Fault.KILL_DRIVER, None, "kill the driver"),
        (Fault.FULL_DISK, 0, "a slot can write no file, slot=0"),
    ],
)
def test_a_game_day_has_one_entry_in_the_audit_log(
    fault: Fault, slot: int | None, told: str
) -> None:
    running()

    keys = {asked(fault, slot=slot, asked_id="nightly-1") for _ in range(2)}

    [key] = keys
    entry = AdminAction.objects.get()
    assert str(entry) == "ada sent a request to pipeline flights"
    assert (entry.detail, entry.reason) == (f"game day {key}: {told}", "to see")
    assert verify_log().is_whole
    assert admin_actions() == []


def test_asking_again_under_the_same_id_starts_no_second_game_day_or_fault() -> None:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1, asked_id="nightly-1")
    hit(key, story)
    GameDay.objects.update(state=GameDayState.ENDED)
    Run.objects.update(status=JobStatus.RESTARTING)

    again = asked(Fault.KILL_SLOT, slot=1, asked_id="nightly-1")

    assert again == key
    assert GameDay.objects.count() == Request.objects.count() == 1
    with pytest.raises(Rejected, match=f"for game day {key} of 'flights', to kill a slot; choose"):
        asked(Fault.KILL_DRIVER, asked_id="nightly-1")
    with pytest.raises(Rejected, match="The request id 'a b' cannot be used"):
        asked(Fault.KILL_DRIVER, asked_id="a b")


def test_concurrent_requests_with_one_id_get_the_same_game_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running()
    key = asked(Fault.KILL_SLOT, slot=1, asked_id="nightly-1")
    looks = iter((None, key))  # at first the other request's row was not there yet
    monkeypatch.setattr(services, "_already_asked", lambda *_: next(looks))

    assert asked(Fault.KILL_SLOT, slot=1, asked_id="nightly-1") == key


def test_a_pipeline_that_is_not_running_is_not_hit() -> None:
    fold(Story(new_run()).started().ended())

    with pytest.raises(Rejected, match="is not running"):
        asked(Fault.KILL_DRIVER)


def test_two_game_days_at_once_are_refused() -> None:
    running()
    asked(Fault.KILL_SLOT, slot=0)

    with pytest.raises(Rejected, match="the effects of two at once could not be separated"):
        asked(Fault.KILL_DRIVER)


def test_a_fault_is_carried_out_once_even_if_two_workers_take_it_up() -> None:
    running()
    key = asked(Fault.KILL_SLOT, slot=0)
    stale = GameDay.objects.select_related("pipeline", "run__pipeline").get()

    services.carry_on(key)
    services._inject(stale)

    assert Request.objects.count() == 1


@pytest.mark.parametrize(
    "trouble",
    [OSError("The disk is full."), psutil.NoSuchProcess(4711), UndecodableEvent("A line is torn.")],
)
def test_a_game_day_with_trouble_does_not_stop_the_others_in_a_round(
    monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    running()
    fold(Story(new_run("other")).started())
    asked(Fault.KILL_SLOT, slot=0)
    services.start_game_day(**{**ASKED, "pipeline": "other"}, fault=Fault.KILL_SLOT, slot=0)
    carry_on = services.carry_on

    def troubled(key: int) -> None:
        if GameDay.objects.get(pk=key).pipeline.name == "other":
            raise trouble
        carry_on(key)

    monkeypatch.setattr(services, "carry_on", troubled)
    tasks.reconcile_game_days()

    states = dict(GameDay.objects.values_list("pipeline__name", "state"))
    assert states == {"flights": GameDayState.INJECTED, "other": GameDayState.ASKED}


@pytest.mark.django_db(transaction=True)
def test_an_absent_broker_does_not_lose_a_game_day(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("It is away.")

    running()
    monkeypatch.setattr(errands.current_app, "send_task", away)

    asked(Fault.KILL_SLOT, slot=0)

    assert GameDay.objects.get().state == GameDayState.ASKED


def test_the_copied_not_audited_value_matches_that_of_the_audit() -> None:
    assert Covers.NOTHING.value == NOT_AUDITED


def running() -> Story:
    """Commits two checkpoints. The story is ten seconds in the past, so that it can continue."""
    story = Story(new_run(), StoryClock(StoryClock().now_ms - 10_000))
    fold(story.started().sampled().completed().completed())
    return story


def hit(key: int, story: Story) -> None:
    """Injects the fault as a worker does, at the time of the story."""
    services.carry_on(key)
    GameDay.objects.filter(pk=key).update(injected_at=moment(story.clock.now_ms))


def recovered() -> tuple[int, Story]:
    story = running()
    key = asked(Fault.KILL_SLOT, slot=1)
    hit(key, story)
    fold(story.wait(50).slot_killed().completed())
    assert carried_on(key).state is GameDayState.AUDITING
    return key, story


def watches(pid: int, story: Story | None = None, after_ms: int = 0) -> None:
    """Lets the worker with that process id do its round over all runs, in the time of the story."""
    at = moment(story.clock.now_ms + after_ms) if story else timezone.now()
    row = {"at": at, "pid": pid}
    Heartbeat.objects.update_or_create(name=HeartbeatName.RECONCILE, defaults=row)


def asked(fault: Fault, slot: int | None = None, asked_id: str | None = None) -> int:
    return services.start_game_day(**ASKED, fault=fault, slot=slot, asked_id=asked_id)


def carried_on(key: int) -> GameDayView:
    services.carry_on(key)
    found = queries.game_day(key)
    assert found is not None
    return found


def audited(audit: Audit, *, up_to: int, of_run: str = "flights-1", differs: bool = False) -> None:
    sink = msgspec.structs.replace(
        PROVEN,
        proven_run_id=RunId(of_run),
        proven_checkpoint_id=CheckpointId(up_to),
        difference=DIFFERENCE if differs else None,
    )
    report = msgspec.to_builtins(report_of(sink))
    Audit.objects.filter(pk=audit.pk).update(ended_at=timezone.now(), report=report)


def fold(story: Story) -> None:
    while Projector().run_once():
        pass


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.01)
