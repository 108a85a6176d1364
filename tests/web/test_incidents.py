"""Incidents: one per pipeline and cause, from the first sign until the pipeline works again."""

import random
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.formats import size
from ftdash.incidents import queries, services
from ftdash.incidents.causes import (
    ADVICE,
    OF_CONCERN,
    OF_FAILURES,
    OUTSIDE,
    Cause,
    Place,
    advice_on,
)
from ftdash.incidents.machine import CALM_CHECKPOINTS, CALM_S, Health, Open, Round, Sign, judge
from ftdash.incidents.models import Incident
from ftdash.incidents.queries import figures, memory_of, path_in, server_in, slot_in
from ftdash.jobs.models import Pipeline, Request
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection.projector import Projector, rebuild
from ftdash.requests.services import ask
from ftdash.retention.pruning import prune
from ftdash.runs.fleet_answers import Concern
from pipelines.connectors.kafka.reader import range_gone
from pipelines.connectors.redis.stream_entries import StreamExtent, id_of, offset_of
from pipelines.connectors.redis.stream_entries import range_gone as entries_gone
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.commands import Cancel, RequestKind, RetryNow
from pipelines.domain.errors import FailureKind, Rejected
from pipelines.domain.events import (
    FailureOccurred,
    JobStatusChanged,
    RestorePointRefused,
)
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.domain.status import JobStatus
from tests.web.journals import Story, new_request, new_run
from tests.web.page_words import words_in

SEEDS = 200


def failed(at_s: float, cause: Cause = Cause.SLOT_LOST) -> Sign:
    return Sign(cause=cause, text=f"at {at_s}", at_s=at_s)


def stands(cause: Cause, at_s: float) -> Sign:
    return Sign(cause=cause, text=cause.value, at_s=at_s, stands=True)


def running(now_s: float, *completed_s: float, is_periodic: bool = True) -> Health:
    return Health(now_s=now_s, is_running=True, is_periodic=is_periodic, completed_s=completed_s)


class TestMachine:
    def test_a_recurring_failure_is_one_incident_with_a_count(self) -> None:
        first = judge([], [failed(1.0), failed(2.0)], Health(now_s=2.0))
        second = judge(first.open, [failed(9.0)], running(9.0, 3.0, 4.0, 5.0))

        [incident] = second.open
        assert (incident.count, incident.opened_s, incident.last_s) == (3, 1.0, 9.0)
        assert incident.text == "at 9.0"

    def test_an_incident_closes_after_enough_checkpoints_since_its_last_sign(self) -> None:
        before = judge([], [failed(10.0)], Health(now_s=10.0)).open

        early = judge(before, [], running(15.0, 9.0, 11.0, 12.0))
        calm = judge(before, [], running(16.0, 11.0, 12.0, 13.0))

        assert (early.open, early.closed) == (before, [])
        assert not calm.open
        assert calm.closed[0].because == f"{CALM_CHECKPOINTS} checkpoints have completed since."

    def test_without_periodic_checkpoints_a_minute_of_running_closes_an_incident(self) -> None:
        before = judge([], [failed(10.0)], Health(now_s=10.0)).open

        assert judge(before, [], running(9.9 + CALM_S, is_periodic=False)).open
        assert judge(before, [], running(10.0 + CALM_S, is_periodic=False)).closed

    @pytest.mark.parametrize("standing", [Cause.NO_CHECKPOINT, Cause.NO_OUTPUT, Cause.STUCK])
    def test_lateness_after_a_failure_opens_no_incident_of_its_own(self, standing: Cause) -> None:
        after = judge([], [stands(standing, 5.0), failed(4.0)], Health(now_s=5.0))

        assert [each.cause for each in after.open] == [Cause.SLOT_LOST]

    def test_a_loss_that_is_seen_before_it_is_reported_counts_once(self) -> None:
        seen = judge([], [stands(Cause.DRIVER_LOST, 1.0)], Health(now_s=1.0)).open
        reported = judge(seen, [failed(2.0, Cause.DRIVER_LOST)], Health(now_s=2.0)).open

        assert [each.count for each in reported] == [1]

    def test_an_earlier_incident_stays_open_beside_a_later_failure(self) -> None:
        before = judge([], [stands(Cause.NO_CHECKPOINT, 1.0)], running(1.0)).open
        after = judge(before, [stands(Cause.NO_CHECKPOINT, 2.0), failed(2.0)], Health(now_s=2.0))

        assert {each.cause for each in after.open} == {Cause.NO_CHECKPOINT, Cause.SLOT_LOST}

    def test_a_lasting_condition_counts_once_and_stays_open_while_it_lasts(self) -> None:
        before: list[Open] = []
        for now_s in (1.0, 2.0, 3.0):
            health = running(now_s, now_s + 1, now_s + 2, now_s + 3)
            before = judge(before, [stands(Cause.NO_OUTPUT, now_s)], health).open

        assert [(each.count, each.last_s) for each in before] == [(1, 3.0)]

    def test_a_failed_run_keeps_its_incident_and_a_stopped_one_does_not(self) -> None:
        before = judge([], [failed(1.0)], Health(now_s=1.0)).open

        assert judge(before, [], Health(now_s=9_999.0)).open == before
        assert judge(before, [], Health(now_s=9.0, is_canceled=True)).closed
        assert judge(before, [], Health(now_s=9.0, is_finished=True)).closed

    @pytest.mark.parametrize("seed", range(SEEDS))
    def test_no_sign_is_lost_and_no_incident_is_doubled(self, seed: int) -> None:
        draws = random.Random(seed)
        known: list[Open] = []
        told, counted, over = 0, 0, 0
        for now_s in range(1, 60):
            signs = [
                failed(float(now_s), draws.choice(sorted(OF_FAILURES)))
                for _ in range(draws.choice((0, 0, 0, 1, 2)))
            ]
            told += len(signs)
            completed = [now_s - draws.random() * 5 for _ in range(draws.randint(0, 4))]
            is_well = draws.random() < 0.7
            health = running(now_s, *completed) if is_well else Health(now_s=now_s)
            after: Round = judge(known, signs, health)
            closed = sum(each.incident.count for each in after.closed)
            over += closed
            known = after.open
            counted = over + sum(each.count for each in known)
            causes = [each.cause for each in known]
            assert len(causes) == len(set(causes)), seed
        assert counted == told, seed


def test_every_cause_has_a_button_or_a_command() -> None:
    """An engineer cannot act at night on a failure class without a next step."""
    for cause in Cause:
        for has_failed in (False, True):
            advice = advice_on(cause, has_failed=has_failed)
            assert advice.steps or cause.value in OUTSIDE
        failed = advice_on(cause, has_failed=True)
        starts = {RequestKind.RESTORE, RequestKind.UPGRADE}
        assert starts & {step.kind for step in failed.steps} or cause.value in OUTSIDE


def test_settings_named_in_advice_exist_and_accept_the_given_values() -> None:
    keys = {definition.key: definition for definition in DEFINITIONS}
    for advice in ADVICE.values():
        for named in re.findall(r"(?:execution|pipeline|restart)[\w.-]+\.[\w.-]*\w", advice.step):
            assert named in keys, named
        for step in advice.steps:
            settings = dict(step.given).get("settings", "")
            for line in settings.splitlines():
                key, value = line.split(": ")
                keys[key].parse(value)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        (
            'connection to server at "127.0.0.1", port 5432 failed: Connection refused',
            "127.0.0.1:5432",
        ),
        ('connection to server at "db" (10.0.0.7), port 6432 failed', "db:6432"),
        ("Error 111 connecting to cache.local:6379. Connection refused.", "cache.local:6379"),
        ("kafka-1:9092/1: Connect to ipv4#10.0.0.1:9092 failed", "kafka-1:9092"),
        ("At 03:11:05 the disk was slow", None),
        ("The target does not answer.", None),
    ],
)
def test_an_unreachable_server_is_named(text: str, server: str | None) -> None:
    assert server_in(text) == server


def test_the_gap_in_a_topic_is_counted() -> None:
    split = SplitProgress(name="clicks-0", offset=1_200)
    said = f"/p cannot be restored: {range_gone(split, 4_800)}"

    assert figures(Cause.INPUT_LOST, said) == (
        "The gap has up to 3,600 records, offsets 1,200 to 4,799."
    )
    assert figures(Cause.INPUT_LOST, "The stream s is gone, with the entries not read yet.") == ""


def test_the_gap_in_a_redis_stream_is_counted_where_possible() -> None:
    split = SplitProgress(name="clicks", offset=offset_of(b"1200-0"), passed=40)
    first, last = offset_of(b"4800-0"), offset_of(b"4900-0")
    extent = StreamExtent(added=3_700, length=60, last=last, max_deleted=0, first=first)
    counted = entries_gone(split, first, extent)

    assert figures(Cause.INPUT_LOST, f"records[0] failed: {counted}") == (
        f"The gap has up to 3,600 records, entries 1200-0 to {id_of(first - 1)}."
    )
    assert figures(Cause.INPUT_LOST, entries_gone(split, first, None)) == ""


def test_no_run_is_said_to_continue_while_its_driver_is_dead(site: Path) -> None:
    run = new_run()
    Story(run).started().slot_killed()
    Projector().run_once()
    at = timezone.now()
    row = {"cause": Cause.DRIVER_LOST, "text": "It is gone.", "opened_at": at, "last_at": at}
    Incident.objects.create(pipeline=run.pipeline, run=run, **row)
    (before,) = (
        each.standing for each in queries.open_incidents() if each.cause is Cause.DRIVER_LOST
    )
    type(run).objects.update(driver_started_at=timezone.now() + timedelta(seconds=1))

    (after,) = (
        each.standing for each in queries.open_incidents() if each.cause is Cause.DRIVER_LOST
    )

    assert before.startswith("The run continues in attempt 2.")
    assert after == "The run continues once its next driver has started."


def test_the_memory_of_a_dead_slot_is_reported() -> None:
    assert slot_in("Slot 12 (pid 80) is gone: killed.") == "12"
    assert slot_in("The driver (pid 80) is gone.") is None
    assert memory_of("12", 3 << 30).startswith("Slot 12 held 3.22 GB of memory")


def test_free_space_is_measured_on_the_disk_named_in_the_message(tmp_path: Path) -> None:
    message = f"[Errno 28] No space left on device: '{tmp_path}/chk-7/state.arrow'"

    said = figures(Cause.DISK_FULL, message)

    total = size(shutil.disk_usage(tmp_path).total)
    assert re.fullmatch(rf".+ of {re.escape(total)} \(.+\) are free on /.* now\.", said)
    assert path_in(message) == f"{tmp_path}/chk-7/state.arrow"
    assert figures(Cause.DISK_FULL, "No space left on device.") == ""
    assert figures(Cause.DISK_FULL, "No space left: /nowhere-here/a/b") == ""


class TestAdvice:
    def test_every_cause_has_a_title_and_a_next_step(self) -> None:
        assert set(ADVICE) == set(Cause)
        for advice in ADVICE.values():
            assert advice.title
            assert not advice.title.endswith(".")
            assert advice.step.endswith(".")

    def test_the_advice_for_a_failed_run_promises_nothing_automatic(self) -> None:
        for cause in Cause:
            advice = advice_on(cause, has_failed=True)
            assert "by itself" not in advice.step
            assert "continues" not in advice.step or not ADVICE[cause].recovers_alone
            assert not advice.recovers_alone
            assert "estore" in advice.step or not ADVICE[cause].recovers_alone
            assert advice_on(cause, has_failed=False) is ADVICE[cause]

    def test_every_kind_of_failure_is_a_cause(self) -> None:
        assert {cause.value for cause in OF_FAILURES} == {kind.value for kind in FailureKind}

    def test_every_concern_is_a_cause_or_follows_from_failures(self) -> None:
        follow = {Concern.UNSTABLE, Concern.RECOVERING, Concern.NONE}

        assert set(OF_CONCERN) | follow == set(Concern)

    @pytest.mark.parametrize("place", [place for place in Place if place])
    def test_every_place_is_a_page_of_the_pipeline(self, place: Place) -> None:
        assert reverse(place.value, args=["flights"])


@pytest.mark.usefixtures("site")
class TestRows:
    def test_a_failure_opens_an_incident_and_three_checkpoints_close_it(self) -> None:
        story = Story(new_run()).started().completed()
        story.wait(100).slot_killed()
        judged()
        [found] = queries.open_incidents()
        assert (found.cause, found.count, found.needs_person) == (Cause.SLOT_LOST, 1, False)
        assert "is gone: killed" in found.text

        story.completed().completed().sampled()
        judged()
        assert queries.open_incidents()
        story.completed()
        judged()

        assert not queries.open_incidents()
        [over] = queries.history(1, 10).rows
        assert over.closed_because == "3 checkpoints have completed since."

    def test_a_damaged_point_skipped_by_a_recovery_is_an_incident_of_its_own(
        self,
    ) -> None:
        story = Story(new_run()).started().completed().completed()
        damaged = RestorePointRefused(path="chk-2", message="chk-2/a.arrow was altered.")
        unfit = RestorePointRefused(
            path="chk-1", message="It does not fit.", kind=FailureKind.STATE_UNMATCHED
        )
        story.wait(100).slot_killed().tell(damaged, unfit)
        judged()
        judged()

        found = {each.cause: each for each in queries.open_incidents()}
        assert set(found) == {Cause.SLOT_LOST, Cause.POINT_DAMAGED}
        assert found[Cause.POINT_DAMAGED].text == "chk-2/a.arrow was altered."
        assert found[Cause.POINT_DAMAGED].count == 1
        assert "newest point that verifies" in found[Cause.POINT_DAMAGED].next_step

    def test_judging_or_folding_a_failure_again_does_not_count_it_twice(self) -> None:
        run = new_run()
        Story(run).started().completed().slot_killed().wait(50).slot_killed()
        for _ in range(3):
            judged()
        run.refresh_from_db()
        rebuild(run)
        judged()

        assert [each.count for each in queries.open_incidents()] == [2]

    def test_the_advice_for_a_run_that_gave_up_is_a_restore_not_a_retry(self) -> None:
        full = FailureOccurred(cause="No space left on device: /x", kind=FailureKind.DISK_FULL)
        story = Story(new_run()).started().tell(full)
        judged()
        [going_on] = queries.open_incidents()
        story.ended(JobStatus.FAILED, "It failed too often.")
        judged()
        [given_up] = queries.open_incidents()

        assert "tries again by itself" in going_on.advice.step
        assert given_up.advice.step.endswith("Then restore the newest point.")
        assert "by itself" not in given_up.advice.step

    def test_a_run_that_fails_keeps_its_cause_and_waits_for_a_person(self) -> None:
        story = Story(new_run()).started()
        story.tell(
            FailureOccurred(
                cause="fraud[1] failed: ZeroDivisionError: by zero",
                author_trace="line 7",
                record="amount: 0",
                kind=FailureKind.FUNCTION,
            )
        ).ended(JobStatus.FAILED, "It failed too often.")
        judged()

        [found] = queries.open_incidents()
        assert (found.cause, found.needs_person) == (Cause.FUNCTION, True)
        assert found.standing == "The run has failed and waits for a person."
        evidence = queries.evidence(found.key)
        assert evidence is not None
        assert (evidence.author_trace, evidence.record) == ("line 7", "amount: 0")

    def test_a_run_that_failed_without_a_recorded_failure_has_an_incident_too(self) -> None:
        Story(new_run()).started().ended(JobStatus.FAILED, "It was given up.")
        judged()
        judged()

        assert [(each.cause, each.text) for each in queries.open_incidents()] == [
            (Cause.UNKNOWN, "It was given up.")
        ]

    def test_a_pipeline_that_is_stopped_has_no_open_incident(self) -> None:
        story = Story(new_run()).started().slot_killed()
        judged()
        assert queries.open_incidents()
        story.ended(JobStatus.CANCELED, "A person cancelled it.")
        judged()

        assert not queries.open_incidents()

    def test_a_failure_kind_of_a_later_version_counts_as_unknown(self) -> None:
        run = new_run()
        Story(run).started().slot_killed()
        Projector().run_once()
        Incident.objects.all().delete()
        Pipeline.objects.get().judgedfailures.delete()
        failure = run.failure_set.get()
        failure.kind = "meteorite"
        failure.save()
        services.judge_all()

        assert [each.cause for each in queries.open_incidents()] == [Cause.UNKNOWN]

    def test_a_projector_that_returns_after_a_pause_opens_no_incident(self) -> None:
        story = Story(new_run()).started().completed()
        judged()
        Heartbeat.objects.update(at=timezone.now() - timedelta(hours=1))
        story.completed()
        judged()

        assert not Incident.objects.exists()

    def test_an_error_in_judging_incidents_does_not_stop_the_projector(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken() -> None:
            raise ValueError("a setting that no version knows")

        monkeypatch.setattr(services, "judge_all", broken)
        run = new_run()
        Story(run).started().completed()

        assert Projector().run_once()

        run.refresh_from_db()
        assert run.last_checkpoint_id == 1
        note = Heartbeat.objects.get(name=HeartbeatName.PROJECTOR).note
        assert note == "Incidents cannot be judged: ValueError: a setting that no version knows"

    def test_closed_incidents_are_pruned_with_the_events_of_their_time(self) -> None:
        old = timezone.now() - timedelta(days=10_000)
        values = {"pipeline": new_run().pipeline, "opened_at": old, "last_at": old}
        Incident.objects.create(cause=Cause.DISK_FULL, closed_at=old, **values)
        Incident.objects.create(cause=Cause.SLOT_LOST, **values)

        prune()

        assert [each.cause for each in Incident.objects.all()] == [Cause.SLOT_LOST]

    def test_open_pages_update_only_on_news(self) -> None:
        run = new_run()
        Story(run).started().slot_killed()
        judged()
        version = Pipeline.objects.get().version
        judged()
        assert Pipeline.objects.get().version == version
        [found] = queries.open_incidents()
        services.note(found.key, "ann", "I look after it.")

        assert Pipeline.objects.get().version == version + 1

    @pytest.mark.parametrize("text", ["", "  \n", "x" * 2_001])
    def test_an_empty_or_too_long_note_is_refused(self, text: str) -> None:
        Story(new_run()).started().slot_killed()
        judged()
        [found] = queries.open_incidents()

        with pytest.raises(Rejected):
            services.note(found.key, "ann", text)
        with pytest.raises(Rejected):
            services.note(found.key + 1, "ann", "I look after it.")


@pytest.mark.usefixtures("site")
class TestPages:
    def test_the_fleet_and_the_pipeline_name_cause_and_next_step(self, operator: Client) -> None:
        Story(new_run()).started().slot_killed().slot_killed()
        judged()

        for address in ("/", "/regions/", "/pipelines/flights/", "/pipelines/flights/regions/"):
            page = operator.get(address).content.decode()
            assert 'data-incident="slot-lost"' in page, address
            assert "2 times since" in page
            assert "The run restarts from its newest checkpoint by itself." in page

    def test_an_incident_and_its_post_mortem_show_evidence_notes_and_who_did_what(
        self, admin: Client
    ) -> None:
        run = new_run()
        Story(run).started().slot_killed(detail="the whole stack")
        new_request(run, Cancel(), requester="ann", reason="to replace the machine")
        judged()
        [found] = queries.open_incidents()
        note = {"text": "The memory of the machine | was full."}

        answer = admin.post(reverse("incident-note", args=[found.key]), note, follow=True)
        page = answer.content.decode()
        post_mortem = admin.get(reverse("post-mortem", args=[found.key])).content.decode()

        assert "the whole stack" in page
        assert "<b>ada</b>" in page
        assert "The memory of the machine | was full." in page
        done = ("asked for: cancel", "waiting for delivery", "ann", "to replace the machine")
        assert " ".join(done) in words_in(page)
        assert f"| {' | '.join(done)} |" in post_mortem
        assert "is gone: killed" in post_mortem
        assert "The memory of the machine" in post_mortem
        assert post_mortem.startswith("# A slot died: flights")

    @pytest.mark.parametrize(
        ("text", "why"),
        [(" ", "an empty note says nothing"), ("a\0b", "Null characters are not allowed")],
    )
    def test_a_refused_note_is_answered_with_the_reason(
        self, admin: Client, text: str, why: str
    ) -> None:
        Story(new_run()).started().slot_killed()
        judged()
        [found] = queries.open_incidents()

        answer = admin.post(reverse("incident-note", args=[found.key]), {"text": text}, follow=True)

        assert why in answer.content.decode()
        assert not queries.open_incidents()[0].notes

    def test_an_operator_reads_an_incident_but_may_not_add_a_note(self, operator: Client) -> None:
        Story(new_run()).started().slot_killed()
        judged()
        [found] = queries.open_incidents()
        note = reverse("incident-note", args=[found.key])

        page = operator.get(reverse("incident", args=[found.key])).content.decode()
        assert "Add the note" not in page
        assert operator.post(note, {"text": "no"}).status_code == 403
        assert not queries.open_incidents()[0].notes

    def test_a_closed_incident_is_listed_with_its_reason(self, operator: Client) -> None:
        assert "No incident is open." in operator.get(reverse("incidents")).content.decode()
        now = timezone.now()
        Incident.objects.create(
            pipeline=new_run().pipeline,
            cause=Cause.DISK_FULL,
            text="/data is full.",
            opened_at=now - timedelta(minutes=5),
            last_at=now,
            closed_at=now,
            closed_because="3 checkpoints have completed since.",
        )
        page = operator.get(reverse("incidents")).content.decode()

        assert "A disk is full" in page
        assert "3 checkpoints have completed since." in page
        assert operator.get(reverse("incident", args=[4711])).status_code == 404

    def test_the_api_lists_incidents_of_all_pipelines_or_of_one(self, operator: Client) -> None:
        Story(new_run()).started().slot_killed()
        Story(new_run("views")).started().slot_killed()
        judged()

        every, one = operator.get("/api/incidents"), operator.get("/api/incidents?pipeline=views")

        assert {each["pipeline"] for each in every.json()} == {"flights", "views"}
        [found] = one.json()
        assert (found["cause"], found["advice"]["title"]) == ("slot-lost", "A slot died")
        assert operator.get(f"/api/incidents/{found['key']}").json() == found
        assert operator.get("/api/incidents/4711").status_code == 404

    def test_pipelines_with_the_same_trouble_share_one_line(self, operator: Client) -> None:
        for number in range(7):
            Story(new_run(f"shop-{number}")).started()
            Projector().run_once()
        Heartbeat.objects.filter(name=HeartbeatName.PROJECTOR).update(
            at=timezone.now() - timedelta(hours=1)
        )
        page = operator.get("/").content.decode()

        assert page.count("The projector, which turns reports of running pipelines") <= 3
        assert "and 2 more" in page


def judged() -> None:
    projector = Projector()
    while projector.run_once():
        pass
    services.judge_all()


def test_a_run_waiting_for_a_restart_shows_a_countdown_and_a_retry_button(admin: Client) -> None:
    story = Story(new_run()).started().completed().waits_for_restart()
    judged()

    [view] = queries.open_incidents()
    assert [step.label for step in view.steps] == ["Retry now"]
    assert view.next_attempt == 2
    for page in ("/", "/pipelines/flights/", f"/incidents/{view.key}/"):
        text = admin.get(page).content.decode()
        assert "Attempt 2 starts by itself in" in text
        assert 'href="/pipelines/flights/retry/"' in text
        assert "127.0.0.1:5432 does not answer." in text

    admin.post("/pipelines/flights/retry/", {"reason": "the server is up again"})
    assert Request.objects.get().kind == RetryNow.kind

    story.tell(JobStatusChanged(status=JobStatus.INITIALIZING))
    judged()
    [later] = queries.open_incidents()
    assert (later.next_attempt, later.restart_at) == (None, None)
    with pytest.raises(Rejected, match="does not wait for a restart: it is INITIALIZING"):
        ask("flights", RetryNow(), who="ada", why="again")
