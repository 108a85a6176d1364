"""The projector: rows equal the journals, however often and from whichever position it reads."""

import random
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import OperationalError

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Failure, Recovery, RequestPhase, Run, ZombieRefusal
from ftdash.metrics.models import Heartbeat, Sample
from ftdash.projection import projector
from ftdash.projection.projector import Projector, project, rebuild
from ftdash.projection.run_fold import RunFold
from ftdash.runs.queries import pipelines as queries
from ftdash.times import moment
from pipelines.bus.journal import JournalWriter, read_journal
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import Cancel, RestorePipeline, StartPipeline
from pipelines.domain.events import (
    CheckpointDiscarded,
    CheckpointFailed,
    DamageRemembered,
    Envelope,
    FailureOccurred,
    LedgerAdvanced,
    LedgerBegun,
    LeftoversKept,
    OutputSuperseded,
    PointsVerified,
    RecordsIsolated,
    RequestAccepted,
    RequestEnded,
    RestorePointRefused,
    SettingsChanged,
    TargetTakenOver,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.ledger import LedgerEntry
from pipelines.domain.origins import RecordOrigin
from pipelines.domain.poison import IsolatedRange
from pipelines.domain.status import (
    CheckpointKind,
    ClaimMode,
    DamageFinder,
    JobStatus,
    RecoveryPhase,
    RequestOutcome,
)
from pipelines.runtime.clocks import SystemClock
from tests.web.journals import (
    SUBTASKS,
    Story,
    new_request,
    new_run,
    phase,
    published_again,
    quarantined,
    run_started,
)
from tests.web.projected_rows import rows_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def jobs_root(settings, tmp_path: Path) -> None:
    settings.JOBS_ROOT = tmp_path


def test_a_checkpoint_becomes_a_row_with_the_phases_of_every_subtask() -> None:
    run = new_run()
    Story(run).started().completed()

    Projector().run_once()

    row = Checkpoint.objects.get(run=run, checkpoint_id=1)
    assert row.status == CheckpointStatus.COMPLETED
    assert (row.acknowledged_count, row.subtask_count) == (len(SUBTASKS), len(SUBTASKS))
    assert row.committed_at is not None
    assert (row.state_bytes, row.buffered_records) == (8000, 2440)
    assert SubtaskPhase.objects.filter(checkpoint=row).count() == len(SUBTASKS)
    slow = SubtaskPhase.objects.get(checkpoint=row, vertex="join", subtask=1)
    assert slow.channels[2]["channel"] == "weather[1]>join.1[1]"


def test_a_run_shows_the_last_report_of_its_driver() -> None:
    run = new_run()
    Story(run).started().sampled(1500.0).completed()

    Projector().run_once()

    run.refresh_from_db()
    assert (run.status, run.attempt, run.guarantee) == ("RUNNING", 1, "exactly once")
    assert run.guarantee_reason == "every link is exact"
    assert (run.records_per_s, run.last_checkpoint_id) == (1500.0, 1)
    assert run.slots == {"0": {"pid": 100, "host": "here"}, "1": {"pid": 101, "host": "here"}}
    assert run.counters == {"join.unmatched_left": 3}
    assert run.watermark_ms == 1_357_000_000_000
    assert run.last_committed_at is not None
    assert run.version == 1


def test_a_run_shows_the_settings_in_force_after_a_change() -> None:
    run = new_run()
    change = {"execution.checkpointing.interval": "5 s"}
    Story(run).started().tell(
        SettingsChanged(settings=change, changed=change, requested_by="ann", reason="calmer")
    )
    before = run.settings_now

    Projector().run_once()

    run.refresh_from_db()
    assert (before, run.settings_now) == (run.settings, change)
    assert queries.pipeline_page(run.pipeline.name).run.settings == change  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(10))
def test_the_rows_do_not_depend_on_how_a_journal_is_split_into_reads(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = new_run("whole"), new_run("piece")
    for run in (whole, cut):
        long_story(run)
    project(whole)
    rng = random.Random(seed)

    def read_some(path: Path, offset: int, bytes_max: int) -> tuple[list, int]:
        return read_journal(path, offset, rng.randint(1, 5_000))

    monkeypatch.setattr(projector, "read_journal", read_some)
    while project(Run.objects.select_related("pipeline").get(pk=cut.pk)):
        pass

    assert rows_of(cut) == rows_of(whole)


def test_folding_the_same_events_again_changes_nothing() -> None:
    run = new_run()
    long_story(run)
    project(run)
    before = rows_of(run)

    stored = Run.objects.select_related("pipeline").get(pk=run.pk)
    envelopes, offset = read_journal(run_directory(run).journal_file, 0)
    projector.fold(stored, envelopes, offset, expected_offset=offset)

    assert rows_of(run) == before


def test_a_crash_before_the_commit_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run()
    long_story(run)
    before = rows_of(run)
    with monkeypatch.context() as patched:
        patched.setattr("ftdash.metrics.projector.SampleFold.save", crash)
        with pytest.raises(OperationalError):
            project(run)
    assert rows_of(run) == before

    project(Run.objects.select_related("pipeline").get(pk=run.pk))

    reference = new_run("flighty")
    long_story(reference)
    project(reference)
    assert rows_of(run) == rows_of(reference)


def test_rows_can_be_rebuilt_from_the_journal() -> None:
    run = new_run()
    story = long_story(run)
    project(run)
    story.ended()
    project(Run.objects.select_related("pipeline").get(pk=run.pk))
    new_run()  # the pipeline has meanwhile started another run
    before = rows_of(run)
    Checkpoint.objects.filter(run=run, checkpoint_id=2).update(state_bytes=1)
    Failure.objects.filter(run=run).delete()

    call_command("projector", rebuild=run.run_id)

    assert rows_of(run) == before


def test_two_projectors_fold_an_event_once() -> None:
    run = new_run()
    Story(run).started().completed()
    stale = Run.objects.select_related("pipeline").get(pk=run.pk)
    project(run)
    before = rows_of(run)

    assert project(stale) == 0
    assert rows_of(run) == before


def test_an_unreadable_line_visibly_stops_the_projection_of_its_run_only() -> None:
    broken, sound = new_run("broken"), new_run("sound")
    Story(broken).started()
    Story(sound).started()
    with run_directory(broken).journal_file.open("ab") as file:
        file.write(b'{"sequence": 99, "event": {"type": "Unheard"}}\n')
    projector_process = Projector()

    projector_process.run_once()
    Story(sound).started()
    projector_process.run_once()

    broken.refresh_from_db()
    sound.refresh_from_db()
    assert "line 6" in broken.projection_error
    assert broken.status == "RUNNING"  # the lines before the broken one were folded
    assert sound.projection_error == ""
    assert sound.last_sequence == 10


def test_a_gap_in_the_journal_stops_the_projection() -> None:
    run = new_run()
    Story(run).started()
    journal = run_directory(run).journal_file
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2] + lines[3:]))

    Projector().run_once()

    run.refresh_from_db()
    assert "a journal has no gaps" in run.projection_error
    assert run.last_sequence == 0


@pytest.mark.parametrize("lines_after", [0, 1, 40])
def test_the_projection_follows_a_journal_that_lost_its_last_lines(
    lines_after: int,
) -> None:
    run = new_run()
    Story(run).started().completed().completed()
    Projector().run_once()
    journal = run_directory(run).journal_file
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = len(lines) // 2

    journal.write_bytes(b"".join(lines[:kept]) + b'{"sequence": ')  # the last line is torn
    with JournalWriter(run_directory(run), run.run_id, SystemClock(), lambda *_: None) as writer:
        for number in range(lines_after):
            writer.append(FailureOccurred(cause=f"after it, {number}"), Attempt(1))
    for _ in range(2):
        Projector().run_once()

    run.refresh_from_db()
    assert run.projection_error == ""
    assert run.last_sequence == kept + lines_after
    assert run.journal_offset == journal.stat().st_size
    assert Failure.objects.filter(run=run, cause__startswith="after").count() == lines_after
    found = rows_of(run)
    assert len(found["Checkpoint"]) == b"".join(lines[:kept]).count(b"CheckpointTriggered")
    rebuild(Run.objects.select_related("pipeline").get(pk=run.pk))
    assert rows_of(run) == found


def test_a_truncated_journal_that_grew_past_the_old_end_is_read_again() -> None:
    run = new_run()
    Story(run).started().completed().completed()
    Projector().run_once()
    journal = run_directory(run).journal_file
    content = journal.read_bytes()
    kept = content.count(b"\n") // 2

    journal.write_bytes(b"".join(content.splitlines(keepends=True)[:kept]))
    with JournalWriter(run_directory(run), run.run_id, SystemClock(), lambda *_: None) as writer:
        before = journal.stat().st_size
        writer.append(FailureOccurred(cause=""), Attempt(1))
        line = journal.stat().st_size - before + len(str(kept + 2)) - len(str(kept + 1))
        padding = len(content) - journal.stat().st_size - line
        writer.append(FailureOccurred(cause="x" * padding), Attempt(1))
        ends_there = journal.stat().st_size == len(content)
        writer.append(FailureOccurred(cause="past it"), Attempt(1))
    for _ in range(2):
        Projector().run_once()

    run.refresh_from_db()
    assert ends_there
    assert (run.projection_error, run.last_sequence) == ("", kept + 3)
    assert Failure.objects.filter(run=run, cause="past it").count() == 1


def test_a_journal_that_was_missing_is_read_again_from_its_beginning() -> None:
    run = new_run()
    Story(run).started().completed()
    Projector().run_once()
    before, journal = rows_of(run), run_directory(run).journal_file

    away = journal.rename(journal.with_name("away"))
    Projector().run_once()
    run.refresh_from_db()
    while_away = (run.projection_error, run.last_sequence, run.journal_offset)
    away.rename(journal)
    Projector().run_once()

    assert while_away == ("", 0, 0)
    assert rows_of(run) == before


def test_a_journal_damaged_after_its_projection_stops_no_other_run() -> None:
    broken, sound = new_run("broken"), new_run("sound")
    for run in (broken, sound):
        Story(run).started().completed()
    Projector().run_once()
    run_directory(broken).journal_file.write_bytes(b"{broken\n")
    with JournalWriter(
        run_directory(sound), sound.run_id, SystemClock(), lambda *_: None
    ) as writer:
        newest = writer.append(FailureOccurred(cause="a slot died"), Attempt(1))

    Projector().run_once()

    broken.refresh_from_db()
    sound.refresh_from_db()
    assert "line 1, cannot be read" in broken.projection_error
    assert (sound.projection_error, sound.last_sequence) == ("", newest.sequence)


def test_an_event_that_cannot_be_folded_visibly_stops_its_run_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, sound = new_run("broken"), new_run("sound")
    for run in (broken, sound):
        Story(run).started()
    on = RunFold.on

    def fail_one(fold: RunFold, envelope: Envelope) -> None:
        if fold.run.pk == broken.pk:
            raise OverflowError("too large for a column")
        on(fold, envelope)

    monkeypatch.setattr(RunFold, "on", fail_one)
    Projector().run_once()

    broken.refresh_from_db()
    sound.refresh_from_db()
    assert broken.projection_error == "OverflowError: too large for a column"
    assert broken.last_sequence == 0
    assert (sound.projection_error, sound.last_sequence) == ("", 5)


def test_a_journal_on_a_failing_disk_is_retried_and_holds_up_no_other() -> None:
    away, sound = new_run("away"), new_run("sound")
    for run in (away, sound):
        Story(run).started()
    journal = run_directory(away).journal_file
    hidden = journal.rename(journal.with_name("hidden"))
    journal.mkdir()  # reading it raises a system error, as with a failing disk

    Projector().run_once()
    seen = [Run.objects.get(pk=run.pk).last_sequence for run in (away, sound)]
    journal.rmdir()
    hidden.rename(journal)
    Projector().run_once()

    away.refresh_from_db()
    assert seen == [0, 5]
    assert (away.projection_error, away.last_sequence) == ("", 5)


def test_a_recovery_is_one_row_with_all_its_phases() -> None:
    run = new_run()
    Story(run).started().completed().slot_killed().completed().slot_killed()

    Projector().run_once()

    run.refresh_from_db()
    first, second = Recovery.objects.filter(run=run)
    assert [each["phase"] for each in first.phases] == [
        "detect",
        "decide",
        "stop",
        "backoff",
        "start",
        "restore",
        "first_record",
        "first_checkpoint",
        "caught_up",
    ]
    assert (first.attempt, second.attempt) == (2, 3)
    assert (first.restored_checkpoint_id, second.restored_checkpoint_id) == (1, 2)
    assert (first.records_to_replay, first.running_at is not None) == (1234, True)
    assert (run.restart_count, run.attempt) == (2, 3)


def test_a_recovery_that_is_read_in_pieces_stays_one_row() -> None:
    run = new_run()
    Story(run).started().completed().slot_killed()
    lines = run_directory(run).journal_file.read_bytes().splitlines(keepends=True)
    run_directory(run).journal_file.write_bytes(b"")
    one_by_one = Projector()

    for line in lines:
        with run_directory(run).journal_file.open("ab") as file:
            file.write(line)
        one_by_one.run_once()

    (recovery,) = Recovery.objects.filter(run=run)
    assert len(recovery.phases) == 9


def test_a_vanished_driver_is_a_failure_and_fails_its_pending_checkpoint() -> None:
    run = new_run()
    story = Story(run).started().completed().triggered()
    story.attempt = Attempt(0)
    story.started(pid=5000)

    Projector().run_once()

    failure = Failure.objects.get(run=run)
    assert "pid 4711" in failure.cause
    assert "5000" in failure.cause
    row = Checkpoint.objects.get(run=run, checkpoint_id=2)
    assert row.status == CheckpointStatus.FAILED
    assert row.reason_name == "CHECKPOINT_COORDINATOR_SHUTDOWN"


def test_the_recovery_from_a_lost_driver_starts_at_its_last_event() -> None:
    run = new_run()
    story = Story(run).started().completed().wait(1000).sampled()
    last_word_ms = story.clock.now_ms
    story.wait(9_000).tell(run_started(5000), phase(RecoveryPhase.DETECT, 9_000.0))
    story.tell(phase(RecoveryPhase.DECIDE, 3.0, restored=1)).slot_killed()

    Projector().run_once()

    takeover, of_slot = Recovery.objects.filter(run=run)
    assert takeover.started_at == moment(last_word_ms)
    assert takeover.phases[0]["duration_ms"] == 9_000
    assert of_slot.phases[0]["duration_ms"] == 12.0


def test_only_the_first_end_of_a_request_counts() -> None:
    run = new_run()
    request = new_request(run)
    story = Story(run).started().answered(request, path="/savepoints/1")
    again = RequestEnded(
        request_id=RequestId(request.request_id), outcome=RequestOutcome.FAILED, message="Late."
    )
    story.tell(again)

    Projector().run_once()

    request.refresh_from_db()
    assert (request.phase, request.message) == (RequestPhase.SUCCEEDED, "Done.")
    assert request.path == "/savepoints/1"


def test_an_accepted_request_is_under_way_and_knows_its_checkpoint() -> None:
    run = new_run()
    request = new_request(run)
    accepted = RequestAccepted(request_id=RequestId(request.request_id))
    Story(run).started().tell(accepted).triggered(CheckpointKind.SAVEPOINT, request.request_id)

    Projector().run_once()

    request.refresh_from_db()
    assert (request.phase, request.checkpoint_id) == (RequestPhase.ACCEPTED, 1)


@pytest.mark.parametrize(
    ("status", "phase"),
    [(JobStatus.FINISHED, RequestPhase.SUCCEEDED), (JobStatus.FAILED, RequestPhase.FAILED)],
)
def test_a_request_to_start_ends_with_its_run_at_the_latest(
    status: JobStatus, phase: RequestPhase
) -> None:
    run = new_run()
    request = new_request(run, StartPipeline(parallelism=2))
    Story(run).ended(status, "The column carrier is missing.")

    Projector().run_once()

    request.refresh_from_db()
    assert (request.phase, request.message) == (phase, "The column carrier is missing.")


def test_a_request_to_start_succeeds_once_its_run_is_running() -> None:
    run = new_run()
    request = new_request(
        run,
        RestorePipeline(
            path="/sp/1",
            parallelism=2,
            claim_mode=ClaimMode.NO_CLAIM,
            allow_non_restored_state=False,
        ),
    )
    Story(run).started()

    Projector().run_once()

    request.refresh_from_db()
    assert request.phase == RequestPhase.SUCCEEDED


def test_open_requests_fail_when_their_run_ends_except_the_cancel() -> None:
    run = new_run()
    savepoint, cancel = new_request(run), new_request(run, Cancel())
    Story(run).started().ended(JobStatus.CANCELED, "Canceled by ann.")

    Projector().run_once()

    savepoint.refresh_from_db()
    cancel.refresh_from_db()
    assert (savepoint.phase, cancel.phase) == (RequestPhase.FAILED, RequestPhase.SUCCEEDED)
    assert savepoint.message == "The run ended first: Canceled by ann."


def test_a_refused_checkpoint_keeps_its_reason_with_and_without_an_id() -> None:
    run = new_run()
    too_early = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    Story(run).started().triggered().tell(
        CheckpointFailed(checkpoint_id=None, reason=too_early, message="Slot 1 is starting."),
        CheckpointFailed(checkpoint_id=None, reason=too_early, message="Slot 1 is starting."),
        CheckpointFailed(checkpoint_id=CheckpointId(1), reason=expired, message="After 10 min."),
    )

    Projector().run_once()

    failed = Checkpoint.objects.filter(run=run, status=CheckpointStatus.FAILED)
    assert sorted(failed.values_list("checkpoint_id", "reason_name"), key=str) == [
        (1, "CHECKPOINT_EXPIRED"),
        (None, "NOT_ALL_REQUIRED_TASKS_RUNNING"),
        (None, "NOT_ALL_REQUIRED_TASKS_RUNNING"),
    ]


def test_fencing_fallback_and_set_aside_output_leave_rows() -> None:
    run = new_run()
    Story(run).started().completed().tell(
        ZombieRefused(zombie_attempt=Attempt(1), what="a late acknowledgement"),
        RestorePointRefused(path="/chk-3", message="/chk-3/a.arrow is truncated."),
        OutputSuperseded(sink=Uid("delays"), files=4, moved_to="/set-aside"),
        published_again(640),
        published_again(None),
        CheckpointDiscarded(checkpoint_id=CheckpointId(1)),
    )

    Projector().run_once()

    assert ZombieRefusal.objects.get(run=run).what == "a late acknowledgement"
    assert run.restorerefusal_set.get().message == "/chk-3/a.arrow is truncated."
    assert run.supersededoutput_set.get().files == 4
    repeated = run.repeatedoutput_set.values_list("sink", "target", "records", "is_at_most")
    assert list(repeated) == [("topic", "topic t", n, False) for n in (640, None)]
    assert Checkpoint.objects.get(run=run).status == CheckpointStatus.DISCARDED


def test_a_failure_keeps_its_operator_and_the_origin_of_its_records() -> None:
    run = new_run()
    origin = RecordOrigin(source=Uid("a"), subtask=0, split="b", first_offset=3, last_offset=9)
    failed = FailureOccurred(cause="It failed.", operator=Uid("parse"), origin=origin)
    Story(run).started().tell(failed, FailureOccurred(cause="A slot was lost."))

    Projector().run_once()

    raised, lost = run.failure_set.all()
    assert (raised.operator, raised.origin["last_offset"]) == ("parse", 9)
    assert (lost.operator, lost.origin) == (None, None)


def test_a_verification_of_all_points_leaves_a_row() -> None:
    run = new_run()
    Story(run).started().tell(PointsVerified(whole=2, damaged=1, not_counted=3, duration_ms=7.5))

    Projector().run_once()

    row = run.pointsverification_set.get()
    assert (row.whole, row.damaged, row.not_counted, row.duration_ms) == (2, 1, 3, 7.5)


def test_damage_leaves_a_row_with_its_files_points_and_remembered_count() -> None:
    run = new_run()
    found = DamageRemembered(
        files=["c1-a1-base"],
        points=["/chk-1", "/chk-2"],
        found_by=DamageFinder.CHECKPOINT,
        message="c1-a1-base is missing.",
        remembered=["c0-a1-base", "c1-a1-base"],
    )
    Story(run).started().tell(found, DamageRemembered(mended=["c0-a1-base"], remembered=["x"]))

    Projector().run_once()

    damaged, mended = run.damagefinding_set.all()
    assert (damaged.files, damaged.points) == (["c1-a1-base"], ["/chk-1", "/chk-2"])
    assert (damaged.found_by, damaged.message) == ("checkpoint", "c1-a1-base is missing.")
    assert (damaged.remembered_count, mended.remembered_count) == (2, 1)
    assert (mended.files, mended.mended) == ([], ["c0-a1-base"])


def test_a_quarantined_record_leaves_a_row_and_its_isolation_none() -> None:
    run = new_run()
    isolated = IsolatedRange(source=Uid("events"), split="a", first_offset=0, last_offset=9, step=1)
    Story(run).started().tell(RecordsIsolated(range=isolated), quarantined(7, count=1)).completed()

    Projector().run_once()

    row = run.quarantinedrecord_set.get()
    assert (row.source, row.split, row.offset, row.operator) == ("events", "a", 7, "parse")
    assert (row.error_type, row.error) == ("builtins.ValueError", "7 is bad")
    assert (row.directory, row.limit) == ("/quarantine/events", 100)
    assert Checkpoint.objects.filter(run=run).count() == 1


def test_samples_are_kept_for_a_bounded_time(settings) -> None:
    settings.SAMPLE_RETENTION_S = 10
    run = new_run()
    story = Story(run).started()
    for _ in range(30):
        story.wait(1000).sampled()

    Projector().run_once()

    assert Sample.objects.filter(run=run).count() == 11  # both ends are included


def test_samples_are_kept_of_a_bounded_number_of_runs(settings) -> None:
    settings.SAMPLE_RETENTION_RUNS = 2
    other = new_run("weather")
    Story(other).started().sampled().ended()
    runs = []
    for _ in range(4):
        runs.append(new_run())
        Story(runs[-1]).started().sampled().ended()
        Projector().run_once()

    kept = [Sample.objects.filter(run=run).count() for run in (other, *runs)]

    assert kept == [1, 0, 0, 1, 1]


def test_phases_of_old_checkpoints_are_deleted_and_their_rows_stay(settings) -> None:
    settings.PHASE_RETENTION_CHECKPOINTS = 10
    run = new_run()
    story = Story(run).started()
    for _ in range(101):
        story.completed()

    Projector().run_once()

    kept = SubtaskPhase.objects.filter(checkpoint__run=run).values_list(
        "checkpoint__checkpoint_id", flat=True
    )
    assert min(kept) > 80
    assert Checkpoint.objects.filter(run=run).count() == 101


def test_the_journal_of_an_ended_run_is_not_read_again() -> None:
    run = new_run()
    Story(run).started().ended()
    process = Projector()
    assert process.run_once() > 0
    run_directory(run).journal_file.unlink()

    assert process.run_once() == 0
    run.refresh_from_db()
    assert run.ended_at is not None
    assert run.slots == {}


def test_the_heartbeat_of_the_projector_reports_a_stopped_projection() -> None:
    run = new_run()
    Story(run).started()
    with run_directory(run).journal_file.open("ab") as file:
        file.write(b"{}\n")
    Projector().run_once()
    Projector().run_once()

    beat = Heartbeat.objects.get(name="projector")

    assert beat.note == f"The projection of {run.run_id} has stopped."


def test_the_heartbeat_has_the_time_of_the_oldest_event_that_no_round_has_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(projector, "READ_BYTES_MAX", 1)  # a round reads one line of each journal
    story, younger = Story(new_run("flights")), Story(new_run("visits"))
    began_ms = story.clock.now_ms
    story.started().wait(1000).sampled().wait(1000).sampled()
    younger.wait(60_000).started()

    unread = []
    for _ in range(7):
        Projector().run_once()
        unread.append(Heartbeat.objects.get(name="projector").unread_since)

    ages_ms = [0, 0, 0, 0, 1000, 2000]
    assert unread == [*(moment(began_ms + each) for each in ages_ms), None]


def test_a_stopped_projection_does_not_count_as_lag() -> None:
    run = new_run()
    Story(run).started()
    with run_directory(run).journal_file.open("ab") as file:
        file.write(b"{}\n")
    for _ in range(3):  # reads up to the line, stops at it, and no longer looks at the run
        Projector().run_once()

    beat = Heartbeat.objects.get(name="projector")
    run.refresh_from_db()

    assert run.projection_error
    assert beat.unread_since is None


def long_story(run: Run) -> Story:
    """Tells one of everything. The rows of two such runs differ only in names and times."""
    story = Story(run)
    story.clock.now_ms = 1_760_000_000_000
    story.started().sampled().completed().completed().slot_killed().sampled(2000.0)
    story.completed(CheckpointKind.SAVEPOINT).triggered()
    late = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
    story.tell(CheckpointFailed(checkpoint_id=None, reason=late, message="Queue full."))
    story.tell(
        LedgerBegun(lineage=[], start=None),
        LedgerAdvanced(
            entry=LedgerEntry(
                run_id=RunId(run.run_id),
                checkpoint_id=CheckpointId(1),
                records_read=7,
                inputs=[],
                outputs=[],
            )
        ),
        ZombieRefused(zombie_attempt=Attempt(1), what="slot 1 acknowledged"),
        RestorePointRefused(path="chk-1", message="a.arrow is missing."),
        PointsVerified(whole=1, damaged=1, duration_ms=5.0),
        DamageRemembered(files=["a.arrow"], message="a.arrow is missing."),
        OutputSuperseded(sink=Uid("delays"), files=3, moved_to="superseded/1"),
        LeftoversKept(sink=Uid("delays"), target="table delays", what="rows", why="It is in use."),
        TargetTakenOver(
            sink=Uid("delays"),
            target="table delays",
            from_run=RunId("flights-9"),
            from_installation="night shift",
            epoch=3,
        ),
        published_again(1_600),
        quarantined(7, count=1),
    )
    story.attempt = Attempt(story.attempt)
    return story.started(pid=5000).wait(1000).sampled()


def crash(*_: object) -> None:
    raise OperationalError("the process dies here")


def test_every_kind_of_projected_row_is_among_the_compared_ones() -> None:
    run = new_run()
    long_story(run)
    project(run)

    compared = rows_of(run)

    assert [name for name, rows in compared.items() if not rows] == []
    assert rebuild(Run.objects.select_related("pipeline").get(pk=run.pk)) is None
    assert rows_of(run) == compared
