"""The pages as an operator reads them."""

import html
import re
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.jobs.models import Run
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import TriggerCheckpoint
from pipelines.domain.events import (
    CheckpointFailed,
    JobStatusChanged,
    OutputSuperseded,
    PointsVerified,
    RestorePointRefused,
    RestoreProgress,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.status import CheckpointKind, JobStatus
from tests.web.journals import Story, StoryClock, new_request, new_run, quarantined, sample
from tests.web.page_words import regions_in, text_of, words_in, words_of

pytestmark = pytest.mark.usefixtures("site")


def test_an_empty_fleet_says_what_to_do(admin: Client, operator: Client) -> None:
    assert reverse("submit") in text_of(admin, "/")
    assert "Starting one needs the admin role" in text_of(operator, "/")


def test_a_page_without_scripts_shows_the_time_of_its_data(operator: Client) -> None:
    fold(Story(new_run()).started())

    for address in ("/", PIPELINE):
        assert re.search(r"as of \d\d:\d\d:\d\d UTC; not live yet", text_of(operator, address))


def test_the_fleet_shows_state_guarantee_clocks_and_throughput_in_words(operator: Client) -> None:
    fold(Story(new_run()).started().sampled(12_345.0).completed())

    page = words_of(operator, "/")

    assert "1 pipeline, 1 running; nothing needs attention." in page
    for shown in ("flights run 1", "Running", "exactly once", "checkpoint 1", "12.3 k/s"):
        assert shown in page


@pytest.mark.parametrize(
    ("is_verifying", "who"), [(True, "The driver verifies"), (False, "The slots load")]
)
def test_a_restore_shows_its_progress(operator: Client, *, is_verifying: bool, who: str) -> None:
    done = RestoreProgress(
        read_bytes=3_200_000_000,
        total_bytes=50_000_000_000,
        read_files=47,
        total_files=1_200,
        is_verifying=is_verifying,
    )
    restoring = msgspec.structs.replace(sample(0.0, 0), restoring=done)
    story = Story(new_run()).started()
    said = f"{who} the recovery point: 3.20 GB of 50.0 GB, 47 of 1,200 files."

    fold(story.tell(JobStatusChanged(status=JobStatus.INITIALIZING), restoring))
    assert said in words_of(operator, PIPELINE)

    fold(story.tell(JobStatusChanged(status=JobStatus.RUNNING), sample(1.0, 1)))
    assert said not in words_of(operator, PIPELINE)


def test_every_page_with_the_two_clocks_shows_them_separately(
    operator: Client, no_time_passes: datetime
) -> None:
    fold(Story(new_run()).started().completed().slot_killed().slot_killed())
    Run.objects.update(
        last_completed_at=no_time_passes - timedelta(seconds=20),
        last_committed_at=no_time_passes - timedelta(seconds=50),
    )

    line = line_of_the_fleet(text_of(operator, "/"))
    page = words_of(operator, PIPELINE)

    assert line["Since checkpoint"] == "20 s checkpoint 1"
    assert (line["Since output"], line["Restarts"]) == ("50 s", "2")
    assert "Since completed checkpoint 20 s checkpoint 1" in page
    assert "Since committed output 50 s at" in page
    both = "since completed checkpoint 20 s since committed output 50 s 2 restarts"
    assert both in words_of(operator, f"{PIPELINE}recovery/")
    checkpoints = words_of(operator, f"{PIPELINE}checkpoints/")
    assert "Since completed checkpoint 20 s checkpoint 1" in checkpoints


def test_the_fleet_puts_what_needs_attention_first(operator: Client) -> None:
    fold(Story(new_run("quiet")).started().completed())
    fold(Story(new_run("zebra")).started().ended(JobStatus.FAILED, "It was given up."))

    page = words_of(operator, "/")

    assert "1 needs attention" in page
    assert "zebra: The run failed It was given up. The run has failed" in page
    table = page[page.index("Throughput") :]
    assert table.index("zebra") < table.index("quiet")


def test_a_silent_driver_is_shown_as_stale_with_its_last_report(operator: Client) -> None:
    fold(Story(new_run(), long_ago()).started().sampled())

    fleet, page = words_of(operator, "/"), words_of(operator, PIPELINE)

    assert "Stale last reported Running" in fleet
    assert "The driver was RUNNING and has reported nothing for" in page
    assert "– last known 1.00 k/s" in fleet
    assert "– last known 1.00 k/s" in page


def test_without_a_projector_the_page_says_that_it_may_be_outdated(operator: Client) -> None:
    fold(Story(new_run()).started().completed())
    Heartbeat.objects.all().delete()

    page = words_of(operator, PIPELINE)

    assert "Unknown" in page
    assert "The pages may be out of date." in page


def test_the_pipeline_page_shows_its_run_in_numbers(operator: Client) -> None:
    fold(Story(new_run()).started().sampled(950.0).completed().sampled(1200.0))

    page = words_of(operator, PIPELINE)

    for shown in (
        "exactly once because every link is exact",
        "run 1 , attempt 1",
        "parallelism 2 of 128",
        "from the beginning",
        "Since completed checkpoint",
        "Since committed output",
        "1.20 k/s",
        "2013-01-01 00:26",  # the watermark
        "slot 0 200 MB",
        "Without a match in the other input join 3",
        "50 % busy, 10 % backpressured, 40 % idle",
    ):
        assert shown in page


def test_the_alignment_names_the_slowest_subtask_in_one_sentence(operator: Client) -> None:
    fold(Story(new_run()).started().completed())

    page = words_of(operator, PIPELINE)

    assert (
        "Checkpoint 1 took 80 ms; its last acknowledgement waited longest for join[1]: it held back"
        " flights[0] for 61 ms (81 %) with 2,440 records buffered, because the barrier from"
        " weather[1] stood in its own queue for" in page
    )


def test_a_chosen_checkpoint_stays_chosen_while_newer_ones_complete(operator: Client) -> None:
    fold(Story(new_run()).started().completed().completed().completed())

    following, chosen = words_of(operator, PIPELINE), words_of(operator, PIPELINE + "?checkpoint=2")

    assert "Alignment of checkpoint 3 Following the newest" in following
    assert "Alignment of checkpoint 2 Follow the newest" in chosen


def test_the_history_gives_a_failed_checkpoint_its_reason(operator: Client) -> None:
    story = Story(new_run()).started().completed().triggered()
    failed = CheckpointFailed(
        checkpoint_id=CheckpointId(2),
        reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
        message="5 of 8 subtasks had acknowledged.",
    )
    fold(story.tell(failed))

    page = words_of(operator, PIPELINE)

    assert "1 checkpoint completed, 1 failed" in page
    assert "Checkpoint expired before completing. 5 of 8 subtasks had acknowledged." in page


def test_the_history_has_pages(operator: Client) -> None:
    story = Story(new_run()).started()
    for _ in range(12):
        story.completed()
    fold(story)

    first, second = text_of(operator, PIPELINE), text_of(operator, PIPELINE + "?page=2")

    assert history_ids(first) == list(range(12, 2, -1))
    assert history_ids(second) == [2, 1]


def test_nonsense_in_the_address_is_ignored(operator: Client) -> None:
    fold(Story(new_run()).started().completed())

    page = text_of(operator, PIPELINE + "?page=x&checkpoint=1%27--")

    assert history_ids(page) == [1]


def test_a_recovery_shows_its_phases_the_failure_and_the_restored_checkpoint(
    operator: Client,
) -> None:
    fold(Story(new_run()).started().completed().slot_killed().completed())

    page = words_of(operator, PIPELINE)

    assert "1 failure in this run" in page
    assert "all subtasks running after 300 ms, from checkpoint 1, with 1,234 records to" in page
    assert "Slot 1 (pid 101) is gone: killed." in page
    assert "12 ms 3.0 ms 105 ms 0 ms 100 ms 80 ms 10 ms 500 ms 700 ms" in page


def test_the_page_reports_damaged_points_zombies_and_superseded_output(operator: Client) -> None:
    story = Story(new_run()).started().completed()
    fold(
        story.tell(
            RestorePointRefused(path="chk-1", message="chk-1/a.arrow is truncated."),
            ZombieRefused(zombie_attempt=Attempt(1), what="slot 1 acknowledged"),
            ZombieRefused(zombie_attempt=Attempt(0), what="a connection without the token"),
            OutputSuperseded(sink=Uid("delays"), files=3, moved_to="superseded/1"),
        )
    )

    page = words_of(operator, PIPELINE)

    assert "A recovery point cannot be used. chk-1/a.arrow is trunc" in page
    spoke_up = "A message from an old attempt or an unknown sender was refused."
    assert f"{spoke_up} Refused, because attempt 1 is over: slot 1 acknowledged." in page
    assert f"{spoke_up} A stranger was refused: a connection without the token." in page
    assert "Output was set aside. 3 outputs of the sink delays" in page


def test_the_page_shows_which_run_rereads_a_quarantine_and_its_progress(operator: Client) -> None:
    run = new_run()
    fold(Story(run).started().tell(quarantined(7, count=1)).ended())
    Run.objects.create(
        pipeline=run.pipeline,
        run_id="flights-2",
        number=2,
        parallelism=1,
        max_parallelism=128,
        master="local[1]",
        created_at=timezone.now(),
        replayed_sources=["events"],
        counters={"events.records_replayed": 3, "other.records_replayed": 9},
    )

    first = words_of(operator, f"{PIPELINE}?run={run.run_id}")
    second = words_of(operator, PIPELINE)

    told = "Run 2 reads the quarantine of events again: 3 records so far"
    assert told in first
    assert told in second
    assert "This run has set no record aside." in second


def test_quarantined_records_are_listed_with_the_place_of_their_lines(operator: Client) -> None:
    events = [quarantined(1_000 + n, count=n + 1) for n in range(25)]
    attack = quarantined(7, count=26, split="<b>a</b>", error="<script>alert(1)</script>")
    fold(Story(new_run()).started().tell(*events, attack).completed())

    page = text_of(operator, PIPELINE)
    words = words_in(page)

    assert "26 of at most 100 records of this run failed again" in words
    assert "/quarantine/events" in words
    assert "events <b>a</b> 7 parse ValueError <script>alert(1)</script>" in html.unescape(words)
    assert "<script>alert" not in page
    assert "<b>a" not in page
    assert "1024 is bad" in words
    assert "1005 is bad" not in words  # only the newest twenty are shown


def test_recovery_points_show_the_requester_and_whether_their_files_exist(
    admin: Client, site: Path
) -> None:
    run = new_run()
    request = new_request(run, request_id="r1")
    point = present_point(site)
    story = Story(run).started().completed(CheckpointKind.SAVEPOINT, "r1", str(point))
    fold(story.answered(request, str(point)).completed().ended())

    page = text_of(admin, PIPELINE)

    assert "ann upgrade" in words_in(page)
    assert page.count(">Restore</a>") == 2  # one button above, one beside the existing point
    assert "gone" in words_in(page)


def test_a_point_shows_when_it_was_verified_and_what_was_found(admin: Client, site: Path) -> None:
    whole, damaged = present_point(site, "whole"), present_point(site, "damaged")
    story = Story(new_run()).started().completed(path=str(whole)).completed(path=str(damaged))
    fold(story)
    shown_before = words_of(admin, PIPELINE)
    message = "Looked at again: totals.arrow was altered."
    fold(
        story.tell(
            RestorePointRefused(path=str(damaged), message=message),
            PointsVerified(whole=1, damaged=1, duration_ms=5.0, paths=[str(whole)]),
        )
    )

    page = words_of(admin, PIPELINE)

    assert "verified" not in shown_before
    points = page[page.index("Asked by Files") :]
    assert re.search(rf"periodic not usable {message}", points)
    assert re.search(r"periodic there verified \S+ \S* ?ago", points)


def test_a_refused_point_that_is_whole_again_is_usable_again(admin: Client, site: Path) -> None:
    point = present_point(site)
    story = Story(new_run()).started().completed(path=str(point))
    story.tell(RestorePointRefused(path=str(point), message="totals.arrow is missing."))
    fold(story.tell(PointsVerified(whole=1, damaged=0, duration_ms=5.0, paths=[str(point)])))

    assert "not usable" not in words_of(admin, PIPELINE)


def test_requests_show_who_asked_when_and_why_and_how_they_ended_or_wait(operator: Client) -> None:
    run = new_run()
    done, waiting = new_request(run), new_request(run, TriggerCheckpoint())
    fold(Story(run).started().answered(done, "/jobs/savepoint-1"))

    page = text_of(operator, PIPELINE)
    rows = dict(re.findall(r'<tr id="request-([^"]+)">(.*?)</tr>', page, re.DOTALL))

    time = r"\d\d:\d\d:\d\d UTC"
    ended = f"{time} Savepoint type CANONICAL ann upgrade succeeded {time} Done. jobs/savepoint-1"
    assert re.fullmatch(ended, words_in(rows[done.request_id]))
    waits = f"{time} Trigger checkpoint ann upgrade waiting for delivery"
    assert re.match(waits, words_in(rows[waiting.request_id]))
    assert re.search(r"Trigger checkpoint : .*, asked by ann", words_in(page))


def test_a_request_that_no_worker_takes_says_that_it_waits(operator: Client) -> None:
    run = new_run()
    new_request(run, created_at=timezone.now() - timedelta(seconds=10))
    fold(Story(run).started())

    assert "stored; it is delivered when a worker runs" in words_of(operator, PIPELINE)


def test_the_history_of_an_older_run_can_be_viewed_and_left_again(operator: Client) -> None:
    fold(Story(new_run()).started().completed().ended())
    fold(Story(new_run()).started().completed().completed())

    page = text_of(operator, PIPELINE + "?run=flights-1")
    back = re.search(r'href="([^"]+)">Back to the newest run</a>', page)

    assert "This is the history of run 1." in words_in(page)
    assert history_ids(page) == [1]
    assert back is not None
    newest = text_of(operator, back[1])
    assert "This is the history of run" not in newest
    assert history_ids(newest) == [2, 1]
    assert operator.get(PIPELINE + "?run=another-1").status_code == 404


def test_a_pipeline_without_a_run_has_a_page(operator: Client) -> None:
    Run.objects.filter(pk=new_run().pk).delete()

    page = words_of(operator, PIPELINE)

    assert "Never started" in page
    assert "No checkpoint has been triggered yet." in page


def test_a_refresh_carries_every_region_of_the_page(operator: Client) -> None:
    fold(Story(new_run()).started().sampled().completed().slot_killed())
    for page, regions in (("/", "/regions/"), (PIPELINE, PIPELINE + "regions/")):
        shown, sent = regions_in(text_of(operator, page)), regions_in(text_of(operator, regions))

        assert sent == shown
        assert len(shown) >= 3
        assert text_of(operator, regions).count('hx-swap-oob="true"') == len(shown)
        assert "<html" not in text_of(operator, regions)


def test_the_page_says_how_old_its_data_is(operator: Client) -> None:
    fold(Story(new_run(), StoryClock(StoryClock().now_ms - 2_000)).started().sampled())

    found = re.search(r'data-fresh-ms="(\d+)"', text_of(operator, PIPELINE))

    assert found is not None
    assert 2_000 <= int(found[1]) < 60_000


def test_text_of_people_and_programs_is_escaped(operator: Client) -> None:
    run = new_run()
    new_request(run, reason="<script>alert(1)</script>")
    refusal = RestorePointRefused(path="x", message="<b>&'\"</b>")
    fold(Story(run).started().completed().tell(refusal))

    page = text_of(operator, PIPELINE)

    assert "<script>alert" not in page
    assert "<b>&'" not in page


PIPELINE = "/pipelines/flights/"


def fold(_: Story) -> None:
    Projector().run_once()
    Heartbeat.objects.update_or_create(
        name=HeartbeatName.RECONCILE, defaults={"at": timezone.now(), "pid": 1}
    )


def line_of_the_fleet(page: str) -> dict[str, str]:
    """Returns the text in each column for the only pipeline."""
    table = page[page.index('id="region-fleet"') :]
    columns = re.findall(r'<th scope="col".*?</th>', table)
    cells = re.findall(r'<t(?:d|h scope="row").*?</t[dh]>', table, re.DOTALL)
    pairs = zip(columns, cells, strict=True)
    return {words_in(column).strip(): words_in(cell).strip() for column, cell in pairs}


def long_ago() -> StoryClock:
    return StoryClock(StoryClock().now_ms - 60_000)


def present_point(root: Path, name: str = "savepoint-1") -> Path:
    point = root / name
    point.mkdir()
    (point / "manifest.json").write_text("{}")
    return point


def history_ids(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="checkpoint-(\d+)"', page)]
