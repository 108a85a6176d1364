"""Queries: complete, ordered, and honest about the age and certainty of their answers."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.jobs.answers import ShownState
from ftdash.jobs.models import RequestPhase
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.metrics.queries import loads as metric_queries
from ftdash.projection.projector import Projector
from ftdash.requests.services import ask
from ftdash.runs.queries import pipelines as queries
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import Cancel, ChangeSettings, RequestKind
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.events import (
    CheckpointDiscarded,
    CheckpointFailed,
    OutputSuperseded,
    RestorePointRefused,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.status import CheckpointKind, JobStatus
from tests.web.journals import Story, StoryClock, new_request, new_run, published_again

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def jobs_root(settings, tmp_path: Path) -> None:
    settings.JOBS_ROOT = tmp_path


def test_a_running_pipeline_is_shown_as_its_driver_reported_it() -> None:
    Story(new_run()).started().sampled(1500.0).completed()
    fold()

    (summary,) = queries.fleet().pipelines

    assert (summary.state, summary.attention) == (ShownState.RUNNING, "")
    assert (summary.records_per_s, summary.last_checkpoint_id) == (1500.0, 1)
    assert summary.as_of is not None


def test_time_axes_mark_each_start_and_each_successful_change_of_settings() -> None:
    run = new_run()
    Story(run).started()
    fold()
    interval, timeout = (f"execution.checkpointing.{name}" for name in ("interval", "timeout"))
    for number, settings in enumerate(({interval: "7 s"}, {interval: "1 s", timeout: "1 min"})):
        at = timezone.now() + timedelta(seconds=number + 1)
        phase = RequestPhase.SUCCEEDED
        new_request(run, ChangeSettings(settings=settings), phase=phase, ended_at=at)
    new_request(run, ChangeSettings(settings={interval: "0 s"}), phase=RequestPhase.REJECTED)

    page = queries.pipeline_page("flights")

    assert page is not None
    assert [mark.text for mark in page.marks] == [
        "run 1 started",
        f"ann changed {interval} to 7 s",
        f"ann changed {interval} to 1 s and 1 more setting",
    ]


@pytest.mark.parametrize(
    ("silence", "written"),
    [(timedelta(seconds=9), "9 s"), (timedelta(hours=1, seconds=2), "1 h 00 min")],
    ids=["seconds", "hours"],
)
def test_a_silent_driver_makes_its_pipeline_stale_within_seconds(
    as_installed: datetime, silence: timedelta, written: str
) -> None:
    Story(new_run(), clock_at(as_installed - silence)).started()
    fold()

    (summary,) = queries.fleet().pipelines

    assert (summary.state, summary.last_reported_state) == (ShownState.STALE, "RUNNING")
    assert f"was RUNNING and has reported nothing for {written}" in summary.state_reason
    assert summary.attention == summary.state_reason


def test_the_state_says_what_the_control_plane_does_about_a_silent_driver(
    as_installed: datetime,
) -> None:
    run = new_run(driver_started_at=as_installed, driver_note="Another one is starting.")
    Story(run, clock_at(as_installed - timedelta(seconds=1))).started()
    fold()

    assert queries.fleet().pipelines[0].state_reason.endswith("Another one is starting.")


@pytest.mark.parametrize("age_s", [None, 9])
def test_without_a_projector_the_state_is_unknown(
    as_installed: datetime, age_s: int | None
) -> None:
    Story(new_run(), clock_at(as_installed)).started()
    fold()
    if age_s is None:
        Heartbeat.objects.all().delete()
    else:
        Heartbeat.objects.update(at=timezone.now() - timedelta(seconds=age_s))

    fleet = queries.fleet()

    assert fleet.pipelines[0].state is ShownState.UNKNOWN
    assert fleet.pipelines[0].last_reported_state == "RUNNING"
    assert not fleet.projector.is_alive
    assert "manage.py projector" in fleet.projector.note


@pytest.mark.parametrize(("age_s", "is_alive"), [(7.5, True), (8.5, False)])
def test_a_missing_worker_is_reported_within_ten_seconds(
    as_installed: datetime, age_s: float, is_alive: bool
) -> None:
    Story(new_run()).started()
    fold()
    Heartbeat.objects.filter(name=HeartbeatName.RECONCILE).update(
        at=timezone.now() - timedelta(seconds=age_s)
    )

    reconcile = queries.fleet().reconcile

    assert reconcile.is_alive is is_alive
    assert is_alive or "requests are kept and wait" in reconcile.note


def test_the_state_of_an_ended_run_is_known_without_any_process() -> None:
    Story(new_run()).started().ended(JobStatus.FAILED, "Slot 1 failed 11 times.")
    fold()
    Heartbeat.objects.all().delete()

    (summary,) = queries.fleet().pipelines

    assert (summary.state, summary.state_reason) == (ShownState.FAILED, "Slot 1 failed 11 times.")
    assert summary.attention == "Slot 1 failed 11 times."


def test_an_unreadable_journal_makes_the_state_unknown_and_names_the_line() -> None:
    run = new_run(projection_error="journal.jsonl, line 7, cannot be read.")
    beat()

    assert queries.fleet().pipelines[0].state is ShownState.UNKNOWN
    page = queries.pipeline_page(run.pipeline.name)
    assert page is not None
    assert page.run is not None
    assert "line 7" in page.run.state_reason


def test_pipelines_that_need_attention_come_first() -> None:
    Story(new_run("a")).started()
    Story(new_run("c")).started()
    Story(new_run("b")).started().ended(JobStatus.FAILED, "Broken.")
    fold()

    assert [each.name for each in queries.fleet().pipelines] == ["b", "a", "c"]


def test_a_pipeline_without_new_checkpoints_needs_attention(settings) -> None:
    settings.CHECKPOINT_LATE_AFTER_S = 5
    story = Story(new_run())
    story.clock.now_ms -= 6_000
    story.started().completed().wait(6_000).sampled()
    fold()

    (summary,) = queries.fleet().pipelines

    assert summary.state is ShownState.RUNNING
    assert summary.attention.startswith("No checkpoint has completed for ")


def test_the_version_changes_with_news_requests_and_silence(settings) -> None:
    run = new_run()
    story = Story(run).started()
    fold()
    seen = [queries.versions()["flights"]]

    assert queries.versions()["flights"] == seen[0]

    story.sampled()
    fold()
    seen.append(queries.versions()["flights"])
    ask("flights", Cancel(), who="ada", why="to test it")
    seen.append(queries.versions()["flights"])
    settings.SILENT_AFTER_S = -1.0
    seen.append(queries.versions()["flights"])

    assert len(set(seen)) == 4


def test_versions_of_all_pipelines_take_three_queries(django_assert_num_queries) -> None:
    for name in "abcde":
        Story(new_run(name)).started()
    fold()

    with django_assert_num_queries(3):
        queries.versions()


def test_a_page_has_the_run_its_slots_subtasks_and_vertices() -> None:
    story = Story(new_run()).started().sampled(2000.0).completed()
    story.wait(1000).sampled(3000.0, since=3_255)
    fold()

    page = queries.pipeline_page("flights")

    assert page is not None
    assert page.run is not None
    assert [vertex.uid for vertex in page.run.vertices] == ["flights", "weather", "join", "delays"]
    assert [(s.slot, s.pid, s.resident_bytes) for s in page.run.slots] == [
        (0, 100, 200_000_000),
        (1, 101, 200_000_000),
    ]
    assert len(page.run.subtasks) == 8
    assert page.run.watermark_at == datetime(2013, 1, 1, 0, 26, 40, tzinfo=UTC)
    assert page.run.records_to_replay == 3_255


def test_an_unknown_pipeline_has_no_page() -> None:
    assert queries.pipeline_page("nothing") is None


def test_a_final_watermark_is_not_shown_as_a_date() -> None:
    new_run(watermark_ms=MAX_WATERMARK_MS)

    page = queries.pipeline_page("flights")

    assert page is not None
    assert page.run is not None
    assert page.run.watermark_at is None


def test_actions_say_whether_they_are_possible_and_what_they_cost() -> None:
    story = Story(new_run())
    story.started().completed().wait(1000).sampled(since=13_346)
    fold()
    running = actions()
    story.ended()
    fold()
    ended = actions()

    assert running[RequestKind.KILL_SLOT].consequence == (
        "The process of one slot is killed; about 13,346 records read since checkpoint 1 will be"
        " replayed."
    )
    assert running[RequestKind.RESTORE].why_not == (
        "flights has a run under way; stop or cancel it first."
    )
    assert ended[RequestKind.RESTORE].is_possible
    assert ended[RequestKind.KILL_SLOT].why_not == "flights is not running."
    assert "as you restore it" in ended[RequestKind.CHANGE_SETTINGS].why_not


def test_checkpoints_come_newest_first_in_pages_with_a_summary() -> None:
    run = new_run()
    story = Story(run).started()
    for _ in range(7):
        story.completed()
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    story.triggered().tell(
        CheckpointFailed(checkpoint_id=CheckpointId(8), reason=expired, message="After 10 min.")
    )
    fold()

    first = checkpoint_queries.checkpoints(run.run_id, page=1, per_page=3)
    beyond = checkpoint_queries.checkpoints(run.run_id, page=99, per_page=3)

    assert first is not None
    assert beyond is not None
    assert [row.checkpoint_id for row in first.rows] == [8, 7, 6]
    assert [row.checkpoint_id for row in beyond.rows] == [2, 1]
    assert (first.page_count, first.total_count) == (3, 8)
    assert (first.summary.completed_count, first.summary.failed_count) == (7, 1)
    assert first.summary.end_to_end_p50_ms == 80.0
    assert first.rows[0].reason_text == "Checkpoint expired before completing."
    assert first.rows[0].message == "After 10 min."
    assert checkpoint_queries.checkpoints("nothing") is None


def test_the_alignment_names_the_slowest_subtask_and_what_it_waited_for() -> None:
    run = new_run()
    Story(run).started().completed().triggered()
    fold()

    newest = checkpoint_queries.alignment(run.run_id)

    assert newest is not None
    assert newest.checkpoint.checkpoint_id == 1  # the newest completed one
    assert [each.vertex for each in newest.subtasks][::2] == [
        "flights",
        "weather",
        "join",
        "delays",
    ]
    slowest = newest.slowest
    assert slowest is not None
    assert (slowest.vertex, slowest.subtask, slowest.phase) == ("join", 1, "alignment")
    assert slowest.phase_ms == 61.0
    assert slowest.held_back is not None
    assert slowest.waited_for is not None
    assert (slowest.held_back.upstream, slowest.held_back.blocked_ms) == ("flights", 61.0)
    assert (slowest.waited_for.upstream, slowest.waited_for.upstream_subtask) == ("weather", 1)


def test_an_unknown_checkpoint_has_no_alignment() -> None:
    run = new_run()
    Story(run).started().completed()
    fold()

    assert checkpoint_queries.alignment(run.run_id, 99) is None
    assert checkpoint_queries.alignment("nothing") is None


def test_the_recovery_axis_holds_failures_recoveries_points_and_notices_in_order() -> None:
    run = new_run()
    Story(run).started().completed().slot_killed().completed().wait(10).tell(
        ZombieRefused(zombie_attempt=Attempt(1), what="a late acknowledgement"),
        CheckpointDiscarded(checkpoint_id=CheckpointId(1)),
    ).wait(10).tell(
        RestorePointRefused(path="/chk-3", message="/chk-3/a.arrow is truncated."),
        OutputSuperseded(sink=Uid("delays"), files=4, moved_to="/aside"),
        published_again(640),
    )
    fold()

    axis = queries.recovery_axis(run.run_id)

    assert axis is not None
    assert [(p.checkpoint_id, p.is_available) for p in axis.points] == [(1, False), (2, True)]
    assert [failure.slot for failure in axis.failures] == [1]
    (recovery,) = axis.recoveries
    assert recovery.to_running_ms == 12.0 + 3.0 + 105.0 + 100.0 + 80.0
    assert recovery.records_to_replay == 1234
    assert [notice.kind for notice in axis.notices] == [
        "zombie_refused",
        "restore_refused",
        "output_superseded",
        "output_published_again",
    ]
    assert queries.recovery_axis("nothing") is None


def test_recovery_points_are_the_kept_ones_of_all_runs_newest_first(tmp_path: Path) -> None:
    old = new_run()
    request = new_request(old)
    location = tmp_path / "savepoint"
    location.mkdir()
    (location / "manifest.json").write_text("{}")
    story = Story(old).started().completed()
    story.completed(CheckpointKind.SAVEPOINT, request.request_id, str(location))
    story.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1))).ended()
    fold()
    new = new_run()
    Story(new).started().wait(60_000).completed()
    fold()

    newest, savepoint = checkpoint_queries.recovery_points("flights")

    assert (newest.run_id, newest.is_newest, newest.is_present) == (new.run_id, True, False)
    assert (savepoint.kind, savepoint.path) == ("SAVEPOINT", str(location))
    assert (savepoint.requester, savepoint.reason) == ("ann", "upgrade")
    assert (savepoint.is_newest, savepoint.is_present) == (False, True)


def test_requests_are_an_audit_log_newest_first() -> None:
    mine, others = new_run("mine"), new_run("others")
    first, second = new_request(mine), new_request(mine, Cancel())
    new_request(others)

    log = queries.requests("mine")

    assert [entry.request_id for entry in log] == [second.request_id, first.request_id]
    assert (log[0].label, log[0].requester, log[0].reason) == ("cancel", "ann", "upgrade")
    assert len(queries.requests()) == 3


def test_a_request_that_no_worker_takes_is_shown_as_waiting() -> None:
    earlier = timezone.now() - timedelta(seconds=5)
    run = new_run()
    waiting = new_request(run, created_at=earlier)
    delivered = new_request(run, created_at=earlier, phase=RequestPhase.DELIVERED)

    views = [queries.request(each.request_id) for each in (waiting, delivered)]

    assert [view and view.waits_for_delivery for view in views] == [True, False]
    assert queries.request("nothing") is None


def test_only_the_newest_samples_are_returned_oldest_first() -> None:
    run = new_run()
    story = Story(run).started()
    for rate in range(10):
        story.wait(1000).sampled(float(rate))
    fold()

    points = metric_queries.samples(run.run_id, limit=3)

    assert [point.records_per_s for point in points] == [7.0, 8.0, 9.0]
    assert points[0].resident_bytes == {0: 200_000_000, 1: 200_000_000}


def clock_at(moment: datetime) -> StoryClock:
    return StoryClock(int(moment.timestamp() * 1000))


def fold() -> None:
    Projector().run_once()
    beat(HeartbeatName.RECONCILE)


def beat(name: HeartbeatName = HeartbeatName.PROJECTOR) -> None:
    Heartbeat.objects.update_or_create(name=name, defaults={"at": timezone.now(), "pid": 1})


def actions() -> dict:
    page = queries.pipeline_page("flights")
    assert page is not None
    return page.actions
