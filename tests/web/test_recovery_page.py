"""The page of failures and recovery: its text, and that this is nothing but text."""

import html
import re
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from ftdash.jobs.models import PointInspection
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection.projector import Projector
from ftdash.runs.queries.recovery_axis import error_type
from pipelines.domain.events import (
    DamageRemembered,
    FailureOccurred,
    LeftoversDiscarded,
    LeftoversKept,
    OutputSuperseded,
    PointsVerified,
    RestorePointRefused,
    TargetTakenOver,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, RunId, Uid
from pipelines.domain.origins import RecordOrigin
from pipelines.domain.status import DamageFinder, RecoveryPhase
from tests.web.journals import Story, new_run, phase, published_again
from tests.web.page_words import regions_in, text_of, words_in, words_of

PAGE = "/pipelines/flights/recovery/"
TRACE = (
    'Traceback (most recent call last):\n  File "flow.py", line 3, in parse\n    int(row)\n'
    "myflow.errors.BadRow: <script>alert(1)</script>\nover two lines: yes\n"
)

pytestmark = pytest.mark.usefixtures("site", "patient")


def test_a_failure_says_type_operator_subtask_split_and_offset(operator: Client) -> None:
    origin = RecordOrigin(
        source=Uid("events"), subtask=1, split="day-<3>", first_offset=70, last_offset=79
    )
    failed = FailureOccurred(
        cause="parse[1] failed: bad row",
        vertex=Uid("join"),
        subtask=1,
        slot=1,
        detail=TRACE,
        operator=Uid("parse"),
        origin=origin,
    )
    fold(Story(new_run()).started().completed().tell(failed))

    page = text_of(operator, PAGE)
    words = html.unescape(words_in(page))

    assert "USER BadRow parse[1] slot 1 events, split day-<3> offsets 70 to 79" in words
    assert "<script>alert(1)</script> over two lines" in words
    assert "<script>alert" not in page
    assert '<details id="details-failure-1"><summary>' in page


def test_a_failure_shows_the_authors_frames_and_record_and_folds_the_rest(
    operator: Client,
) -> None:
    failed = FailureOccurred(
        cause="parse[1] failed: bad row",
        detail=TRACE,
        operator=Uid("parse"),
        author_trace='File "shop.py", line 3, in parse\nBadRow: <b>',
        record="name: '<i>'\npassword: ***",
    )
    fold(Story(new_run()).started().completed().tell(failed))

    page = text_of(operator, PAGE)
    words = html.unescape(words_in(page))

    assert 'Traceback of your code File "shop.py", line 3, in parse BadRow: <b>' in words
    assert "The record name: '<i>' password: *** The full traceback" in words
    assert "<i>" not in page
    assert page.index("line 3, in parse") < page.index('<details id="details-failure-1"')


def test_a_lost_slot_is_a_system_failure_and_a_failed_run_names_no_place(operator: Client) -> None:
    story = Story(new_run()).started().completed().slot_killed()
    fold(story.tell(FailureOccurred(cause="The stage ended.")))

    words = words_of(operator, PAGE)

    assert "Slot 1 (pid 101) is gone: killed. SYSTEM slot 1 –" in words
    assert "The stage ended. SYSTEM the run –" in words


@pytest.mark.parametrize(
    ("trace", "name"),
    [
        (TRACE, "BadRow"),
        (f"{TRACE}\nDuring handling ...:\n\n{TRACE.replace('BadRow', 'Worse')}", "Worse"),
        ("Traceback (most recent call last):\n  File\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("Traceback (most recent call last):\n", ""),
        ("killed by signal 9", ""),
        ("", ""),
    ],
)
def test_the_type_of_an_error_is_read_from_its_trace(trace: str, name: str) -> None:
    assert error_type(trace) == name


def test_the_same_failure_is_listed_once_with_its_count(operator: Client) -> None:
    """Process and attempt numbers do not make a different failure; another cause does."""
    story = Story(new_run()).started()
    for pid in range(4_700, 4_715):
        story.wait(1_000).tell(FailureOccurred(cause=f"Slot 1 (pid {pid}) is gone.", slot=1))
    fold(story.tell(FailureOccurred(cause="The disk is full.")))

    for page in (PAGE, "/pipelines/flights/"):
        words = words_of(operator, page)
        assert words.count("is gone. ") == 1  # the values in the chart have no space
        assert "Slot 1 (pid 4714) is gone." in words
        assert re.search(r"15 times since .{5,40}, last .{1,20} ago", words)
        assert words.count("The disk is full.") >= 1


def test_recoveries_show_every_phase_and_their_median(operator: Client) -> None:
    story = Story(new_run()).started().completed().slot_killed()
    story.tell(phase(RecoveryPhase.DETECT, 212.0), phase(RecoveryPhase.DECIDE, 5.0, restored=1))
    fold(story)

    words = words_of(operator, PAGE)

    assert (
        "median 300 ms 112 ms 4.0 ms 105 ms 0 ms 100 ms 80 ms 10 ms 500 ms 700 ms attempt 2"
        in words
    )
    assert "under way checkpoint 1 1,234 212 ms 5.0 ms – – – – – – –" in words


def test_refusals_are_counted_by_kind_and_attempt_and_strangers_separately(
    operator: Client,
) -> None:
    story = Story(new_run()).started()
    for number in (4, 5):
        what = f"a commit of checkpoint {number} by delays[0]"
        story.tell(ZombieRefused(zombie_attempt=Attempt(3), what=what))
    story.tell(
        ZombieRefused(zombie_attempt=Attempt(3), what="an acknowledgement of checkpoint 4 by x[0]"),
        ZombieRefused(zombie_attempt=Attempt(2), what="a decline of checkpoint 1 by x[0]"),
        ZombieRefused(zombie_attempt=Attempt(2), what="the end of the source x[0]"),
        ZombieRefused(zombie_attempt=Attempt(0), what="wrong token"),
    )
    fold(story)

    words = words_of(operator, PAGE)

    assert (
        "1 connection of a stranger refused. 1 late decline of attempt 2 refused. 1 late end of"
        " input of attempt 2 refused. 1 late acknowledgement of attempt 3 refused. 2 late commits"
        " of attempt 3 refused." in words
    )


def test_the_page_shows_refused_points_and_superseded_or_repeated_output(operator: Client) -> None:
    story = Story(new_run()).started().completed()
    story.tell(
        RestorePointRefused(path="chk-1", message="chk-1/a.arrow is truncated."),
        OutputSuperseded(sink=Uid("delays"), files=3, moved_to="superseded/1"),
        published_again(1_600),
        published_again(None),
    )
    fold(story)

    words = words_of(operator, PAGE)

    assert "chk-1/a.arrow is truncated." in words
    assert "3 outputs of the sink delays" in words
    assert "1,600 records that readers of topic t have already seen will be published" in words
    assert "How many records that readers of topic t have already seen" in words
    assert words.count("Output is published again.") == 2


@pytest.mark.parametrize("page", [PAGE, "/pipelines/flights/"])
def test_the_page_shows_discarded_and_kept_leftovers_and_a_takeover(
    operator: Client, page: str
) -> None:
    story = Story(new_run()).started().completed()
    left = {"sink": Uid("delays"), "target": "table delays", "what": "prepared transactions"}
    story.tell(
        LeftoversDiscarded(**left, count=5, runs=(RunId("flights-0"),), run_count=1),
        LeftoversKept(**left, why="A point needs them.", count=2),
        TargetTakenOver(
            sink=Uid("delays"),
            target="table delays",
            from_run=RunId("flights-9"),
            from_installation="night shift",
            epoch=3,
        ),
    )
    fold(story)

    words = words_of(operator, page)

    assert (
        "Output that was never committed was cleaned up. 5 prepared transactions of the sink delays"
        " in table delays, left by run flights-0." in words
    )
    assert (
        "Output that was never committed stays. 2 prepared transactions of the sink delays in table"
        " delays. A point needs them." in words
    )
    assert (
        "A target was taken over from another installation. The sink delays holds table delays from"
        " this run on. Run flights-9 of installation night shift held it before" in words
    )


def test_the_last_verification_and_the_fitness_of_each_point_are_shown(
    operator: Client, site: Path
) -> None:
    whole, reading = written(site / "whole"), written(site / "reading")
    story = Story(new_run()).started().completed(path=whole).completed(path=reading).completed()
    fold(story)
    assert "The points of this run have not been verified yet" in words_of(operator, PAGE)
    story.tell(PointsVerified(whole=0, damaged=0, not_counted=3, duration_ms=40.0))
    fold(story)
    uncounted = words_of(operator, PAGE)
    story.tell(PointsVerified(whole=1, damaged=2, duration_ms=40.0, paths=[whole]))
    fold(story)
    PointInspection.objects.create(
        path=reading, files_read=3, files=40, bytes=9_000_000, moved_at=timezone.now()
    )

    words = words_of(operator, PAGE)

    assert "3 deleted meanwhile or without an answer from the storage, in 40 ms." in uncounted
    assert "ago were verified then: 1 point whole, 2 damaged, in 40 ms." in words
    assert "verified read again" in words
    assert "is being read: 3 of 40 files, 0 B of 9.00 MB" in words
    assert "gone its manifest is missing" in words


def test_damage_is_shown_with_its_consequences_beside_the_points(
    operator: Client, site: Path
) -> None:
    point = written(site / "a")
    refers = "It refers to c1-a1-<base>, which was found damaged."
    story = Story(new_run()).started().completed(path=point)
    story.tell(
        DamageRemembered(
            files=["c1-a1-<base>"],
            points=[point],
            found_by=DamageFinder.VERIFICATION,
            message="c1-a1-<base> was altered.",
            remembered=["c1-a1-<base>"],
        ),
        RestorePointRefused(path=point, message=refers),
    )
    fold(story)

    words = html.unescape(words_of(operator, PAGE))

    assert "The shared file c1-a1-<base> is damaged, found by a reading of all points" in words
    assert "1 point refers to it; the next checkpoint writes the content again." in words
    assert f"not usable {refers}" in words
    assert "<base>" not in text_of(operator, PAGE)


def test_one_point_is_recommended_with_reason_and_estimate(admin: Client, site: Path) -> None:
    story = Story(new_run()).started().sampled(1_000.0).completed(path=written(site / "a"))
    fold(story.completed(path=written(site / "b")).slot_killed().ended())

    page = text_of(admin, PAGE)
    words = words_in(page)

    assert "recommended Checkpoint 2 of run 1 , completed" in words
    assert "is the newest usable point, so the least input is read again: 0 records." in words
    assert "0 records would be read again, in about 300 ms, judging by 1 measured" in words
    assert page.count("recommended</span>") == 2
    assert 'id="restore-recommended" data-dialog' in page
    assert "No run is under way, so a failure would cost nothing now." in words


def test_the_page_states_the_cost_of_a_failure_now_in_records_and_time(operator: Client) -> None:
    story = Story(new_run())
    story.clock.now_ms += 60_000  # nothing is added for the time since the last sample
    story.started().completed().sampled(2_000.0)
    fold(story)
    unmeasured = words_of(operator, PAGE)

    fold(story.slot_killed().sampled(2_000.0))

    assert "how long that takes is not known until a recovery has been measured." in unmeasured
    words = words_of(operator, PAGE)
    assert "If it died now: about" in words
    assert "judging by 1 measured recovery." in words


def test_the_page_shows_the_same_number_of_records_to_reread_everywhere(
    operator: Client, site: Path
) -> None:
    fold(Story(new_run()).started().completed(path=written(site / "a")).sampled(1e9))

    found = re.findall(r"(?i)about ([\d,]+) records", words_of(operator, PAGE))

    assert len(found) == 3  # if it died now, why that point is recommended, and its cost
    assert len(set(found)) == 1


def test_an_operator_sees_the_points_and_no_button(operator: Client, site: Path) -> None:
    fold(Story(new_run()).started().completed(path=written(site / "a")).ended())

    page = text_of(operator, PAGE)

    assert "data-dialog" not in page
    assert "Restoring needs the admin role." in page


def test_the_page_of_a_running_pipeline_says_why_nothing_can_be_restored(
    admin: Client, site: Path
) -> None:
    fold(Story(new_run()).started().completed(path=written(site / "a")))

    page = text_of(admin, PAGE)

    why = "restored now: flights has a run under way; stop or cancel it first."
    assert f"It cannot be {why} A failed attempt recovers by itself." in page
    assert "data-dialog" not in page
    assert f"None can be {why}" in text_of(admin, "/pipelines/flights/")


def test_an_earlier_run_can_be_looked_at(operator: Client) -> None:
    fold(Story(new_run()).started().completed().slot_killed().ended())
    fold(Story(new_run()).started())

    newest, earlier = words_of(operator, PAGE), words_of(operator, PAGE + "?run=flights-1")

    assert "Nothing has failed in this run." in newest
    assert "Earlier runs run 1" in newest
    assert "This is the history of run 1." in earlier
    assert "Slot 1 (pid 101) is gone" in earlier


def test_a_refresh_carries_every_region(operator: Client) -> None:
    fold(Story(new_run()).started().completed().slot_killed())

    shown, sent = text_of(operator, PAGE), text_of(operator, PAGE + "regions/")

    assert regions_in(sent) == regions_in(shown)
    assert sent.count('hx-swap-oob="true"') == len(regions_in(shown)) == 11


def test_a_pipeline_without_a_run_has_a_page(operator: Client) -> None:
    new_run().delete()

    words = words_of(operator, PAGE)

    assert "Nothing has failed in this run." in words
    assert "Nothing to restore from yet." in words


def written(point: Path) -> str:
    point.mkdir()
    (point / "manifest.json").write_text("{}")
    return str(point)


def fold(_: Story) -> None:
    Projector().run_once()
    Heartbeat.objects.update_or_create(
        name=HeartbeatName.RECONCILE, defaults={"at": timezone.now(), "pid": 1}
    )
