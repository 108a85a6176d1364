"""Retention of history: old rows are deleted in batches; rows that a point needs stay."""

import re
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.accounts.models import AdminAction
from ftdash.alerts.models import Alert, Channel, ChannelKind, Delivery, News
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.checkpoints.queries.checkpoints import (
    FailureCount,
    StatusCounts,
    counts_of,
    failure_counts,
)
from ftdash.checkpoints.queries.statistics import statistics_of
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.jobs.models import (
    Failure,
    Leftover,
    QuarantinedRecord,
    Recovery,
    RepeatedOutput,
    RestoreRefusal,
    Run,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
from ftdash.lab.models import Lab, LabState
from ftdash.metrics.models import Sample
from ftdash.projection.projector import Projector, rebuild
from ftdash.prometheus.observed import observed
from ftdash.retention import pruning, queries
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import Rejected
from pipelines.domain.events import (
    CheckpointDiscarded,
    CheckpointFailed,
    RestorePointRefused,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.domain.status import CheckpointKind
from tests.web.journals import Story, new_run, quarantined
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site")

LONG_AGO = timedelta(days=400)
EVENTS = (
    Failure,
    Recovery,
    RepeatedOutput,
    RestoreRefusal,
    SupersededOutput,
    Leftover,
    TargetTakeover,
    ZombieRefusal,
)


def test_available_checkpoints_stay_however_old() -> None:
    story = Story(new_run()).started()
    story.completed().completed(CheckpointKind.SAVEPOINT).completed().triggered()
    story.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)))
    Projector().run_once()
    grow_old(Checkpoint, "trigger_at", "completed_at")

    assert not pruning.prune()

    left = {row.checkpoint_id: row.status for row in Checkpoint.objects.all()}
    assert left == {
        2: CheckpointStatus.COMPLETED,  # a savepoint
        3: CheckpointStatus.COMPLETED,
        4: CheckpointStatus.IN_PROGRESS,
    }
    assert not SubtaskPhase.objects.filter(checkpoint__checkpoint_id=1).exists()


def test_a_checkpoint_that_a_run_was_restored_from_outlives_its_files() -> None:
    story = Story(new_run()).started().completed(path="/points/1").completed(path="/points/2")
    for number in (1, 2):
        story.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(number)))
    Projector().run_once()
    new_run("fork", restored_from="/points/1")
    grow_old(Checkpoint, "trigger_at", "completed_at")

    pruning.prune()

    assert [row.path for row in Checkpoint.objects.all()] == ["/points/1"]


def test_old_failures_and_events_are_deleted_and_the_current_state_stays() -> None:
    run = new_run()
    story = Story(run).started().completed().slot_killed().slot_killed()
    story.tell(quarantined(7, count=1))
    Projector().run_once()
    newest = {row.status: row.pk for row in StatusChange.objects.order_by("pk")}
    grow_old(StatusChange, "at")
    for table in (*EVENTS, QuarantinedRecord):
        grow_old(table, "at")

    pruning.prune()

    assert {row.status: row.pk for row in StatusChange.objects.all()} == newest
    assert not any(table.objects.exists() for table in EVENTS)
    assert QuarantinedRecord.objects.count() == 1


def test_counts_stay_the_same_after_their_rows_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 2)
    story = counted_story()
    before = counts()
    assert before.statuses == StatusCounts(total=7, in_progress=0, completed=2, failed=5)
    assert (before.restored, before.zombies, before.points) == (1, 1, 1)

    pruning.prune()
    assert not Checkpoint.objects.exclude(status=CheckpointStatus.COMPLETED).exists()
    assert not any(table.objects.exists() for table in EVENTS)
    assert counts() == before

    declined(story)
    Projector().run_once()
    for _ in range(2):  # once beside the deleted ones, and once among them
        more = counts()
        assert more.statuses == StatusCounts(total=8, in_progress=0, completed=2, failed=6)
        assert [(each.reason_name, each.count, each.newest_id) for each in more.failures] == [
            ("CHECKPOINT_DECLINED", 5, 7),
            ("CHECKPOINT_EXPIRED", 1, 6),
        ]
        grow_old(Checkpoint, "trigger_at", "failed_at")
        pruning.prune()


def test_rebuilt_rows_are_counted_once() -> None:
    counted_story()
    before = counts()
    pruning.prune()

    rebuild(Run.objects.get())

    assert counts().statuses == before.statuses
    assert (counts().restored, counts().zombies) == (before.restored, before.zombies)


def test_counts_kept_for_deleted_rows_belong_to_their_run_only() -> None:
    counted_story()
    other = new_run("other")
    Story(other).started().completed()
    Projector().run_once()

    pruning.prune()

    assert counts_of(other.pk) == StatusCounts(total=1, in_progress=0, completed=1, failed=0)
    assert failure_counts(other.pk) == []


def test_recent_rows_stay() -> None:
    Story(new_run()).started().sampled().completed().slot_killed()
    Projector().run_once()
    before = {kind: view.rows for kind, view in by_kind().items()}

    pruning.prune()

    assert {kind: view.rows for kind, view in by_kind().items()} == before


def test_samples_are_kept_relative_to_the_newest_of_their_run() -> None:
    for name in ("ended", "running"):
        story = Story(new_run(name)).started()
        for _ in range(4):
            story.wait(600_000).sampled()
    Projector().run_once()
    grow_old_by(Sample, "at", LONG_AGO)  # all of them: the runs ended long ago
    limits.change(kind=Kind.METRICS, keep=timedelta(minutes=30), requester="ada", reason="disk")
    assert Sample.objects.count() == 8

    limits.change(kind=Kind.METRICS, keep=timedelta(hours=1), requester="ada", reason="more")
    assert pruning.count_older(Kind.METRICS, timedelta(minutes=15)) == 4
    pruning.prune()

    assert Sample.objects.count() == 8


def test_a_running_run_keeps_samples_for_the_chosen_time() -> None:
    limits.change(kind=Kind.METRICS, keep=timedelta(hours=3), requester="ada", reason="more")
    story = Story(new_run()).started()
    for _ in range(6):
        story.wait(2_400_000).sampled()
        Projector().run_once()

    assert Sample.objects.count() == 5  # at 0, 40, 80, 120, 160 min before the newest; not at 200


def test_firing_alerts_stay_and_old_test_messages_are_deleted() -> None:
    pipeline = new_run().pipeline
    old = timezone.now() - LONG_AGO
    values: dict[str, Any] = {"pipeline": pipeline, "fire_above": 1, "fired_value": 2}
    Alert.objects.create(rule_name="fires", fired_at=old, **values)
    Alert.objects.create(rule_name="cleared", fired_at=old, cleared_at=old, **values)
    channel = Channel.objects.create(
        name="ops", kind=ChannelKind.MAIL, address="a@example.org", created_at=old
    )
    Delivery.objects.create(channel=channel, news=News.TEST, created_at=old, due_at=old)

    pruning.prune()

    assert [alert.rule_name for alert in Alert.objects.all()] == ["fires"]
    assert not Delivery.objects.exists()


def test_the_newest_lab_stays_and_older_ones_are_deleted() -> None:
    old = timezone.now() - LONG_AGO
    for state in (LabState.ENDED, LabState.ENDED, LabState.FAILED):
        Lab.objects.create(options={}, state=state, asked_at=old, ended_at=old)
    Lab.objects.create(options={}, state=LabState.RUNNING, asked_at=old)
    newest = Lab.objects.filter(state=LabState.ENDED).first()

    pruning.prune()

    assert {lab.pk for lab in Lab.objects.exclude(state=LabState.RUNNING)} == {newest.pk}
    assert Lab.objects.filter(state=LabState.RUNNING).exists()


def test_rows_are_deleted_in_batches_and_a_task_stops_at_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = new_run()
    rows = [failed(run, number) for number in range(7)]
    Checkpoint.objects.bulk_create(rows)
    monkeypatch.setattr(pruning, "BATCH", 2)
    monkeypatch.setattr(pruning, "TASK_BUDGET_S", -1.0)

    assert pruning.prune()
    assert Checkpoint.objects.count() == 5
    monkeypatch.setattr(pruning, "TASK_BUDGET_S", 60.0)
    assert not pruning.prune()

    assert not Checkpoint.objects.exists()


def test_the_page_counts_rows_by_kind_and_says_how_long_they_are_kept(
    operator: Client,
) -> None:
    run = new_run()
    Checkpoint.objects.bulk_create([failed(run, number) for number in range(3)])

    page = operator.get(reverse("settings")).content.decode()

    assert by_kind()[Kind.CHECKPOINTS].rows == 3
    assert by_kind()[Kind.CHECKPOINTS].older == 3
    assert re.search(r" checkpoints 90 days the default 3 \S+ UTC 3 ", words_in(page))
    assert "/settings/keep-history/" not in page


def test_a_retention_choice_says_what_it_deletes_and_asks_for_the_name(admin: Client) -> None:
    run = new_run()
    Checkpoint.objects.bulk_create([failed(run, number) for number in range(3)])
    where = reverse("settings-action", args=["keep-history"]) + "?of=CHECKPOINTS"
    year = str(3 * 365 * 86_400)

    page = admin.get(where).content.decode()
    assert "90 days (as now): deletes 3 rows within minutes" in page
    assert "1,095 days: deletes 0 rows within minutes" in page
    refused = admin.post(where, {"keep": year, "reason": "law", "confirmation": "x"})
    assert refused.status_code == 422
    admin.post(where, {"keep": year, "reason": "law", "confirmation": "CHECKPOINTS"})

    assert limits.kept_for(Kind.CHECKPOINTS) == timedelta(days=1_095)
    assert limits.kept_for(Kind.EVENTS) == timedelta(days=90)
    done = AdminAction.objects.get()
    assert (done.subject, done.detail) == ("history of checkpoints", "kept for 1,095 days")
    assert not by_kind()[Kind.CHECKPOINTS].is_default
    assert admin.get(where.replace("CHECKPOINTS", "nothing")).status_code == 404


def test_a_retention_time_that_is_not_offered_is_refused() -> None:
    with pytest.raises(Rejected, match="cannot be kept for"):
        limits.change(kind=Kind.EVENTS, keep=timedelta(seconds=1), requester="ada", reason="disk")


@dataclass(frozen=True)
class Counts:
    statuses: StatusCounts
    failures: list[FailureCount]
    restored: int
    zombies: int
    points: int


def counts() -> Counts:
    """Returns the counts of `counted_story`'s run as programs and monitors get them."""
    run = Run.objects.get(run_id="flights-1")
    [seen] = [each.run for each in observed().pipelines if each.name == "flights"]
    told = statistics_of(run.run_id)
    assert seen is not None
    assert told is not None
    assert seen.checkpoints.failures == {each.reason_name: each.count for each in told.failures}
    assert asdict(seen.checkpoints.counts).items() <= asdict(told.counts).items()
    return Counts(
        statuses=counts_of(run.pk),
        failures=failure_counts(run.pk),
        restored=told.counts.restored,
        zombies=seen.refused_zombie_count,
        points=seen.refused_point_count,
    )


def counted_story() -> Story:
    """Makes five failed checkpoints, one of them without an id, a deleted one, and the rest."""
    story = Story(new_run()).started().completed().completed().slot_killed()
    story.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)))
    for _ in range(3):
        declined(story)
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    story.triggered().tell(
        CheckpointFailed(checkpoint_id=story.next_checkpoint, reason=expired, message="too slow")
    )
    story.next_checkpoint = CheckpointId(story.next_checkpoint + 1)
    declined(story, has_id=False)
    story.tell(
        RestorePointRefused(path="chk-1", message="chk-1/a.arrow is truncated."),
        ZombieRefused(zombie_attempt=Attempt(1), what="slot 1 acknowledged"),
    )
    Projector().run_once()
    grow_old(Checkpoint, "trigger_at", "completed_at", "failed_at")
    for table in EVENTS:
        grow_old(table, "at")
    return story


def declined(story: Story, *, has_id: bool = True) -> None:
    number = story.next_checkpoint if has_id else None
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    if has_id:
        story.triggered()
        story.next_checkpoint = CheckpointId(story.next_checkpoint + 1)
    story.tell(CheckpointFailed(checkpoint_id=number, reason=reason, message="no"))


def grow_old(table: Any, *columns: str) -> None:
    for column in columns:
        grow_old_by(table, column, LONG_AGO)


def grow_old_by(table: Any, column: str, by: timedelta) -> None:
    for row in table.objects.exclude(**{column: None}):
        table.objects.filter(pk=row.pk).update(**{column: getattr(row, column) - by})


def failed(run: Run, number: int) -> Checkpoint:
    old: datetime = timezone.now() - LONG_AGO
    return Checkpoint(
        run=run,
        sequence=number + 1,
        attempt=1,
        kind=CheckpointKind.CHECKPOINT.value,
        status=CheckpointStatus.FAILED,
        trigger_at=old,
        failed_at=old,
    )


def by_kind() -> dict[Kind, queries.KeptView]:
    return {view.kind: view for view in queries.kept()}
