"""The log of events and of people's actions: its content, its filters, and its pages."""

import csv
import json
import re
from datetime import timedelta
from html import unescape
from io import StringIO
from itertools import chain

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import AdminAction
from ftdash.alerts.models import Alert
from ftdash.checkpoints.models import Audit, Checkpoint
from ftdash.eventlog import queries
from ftdash.eventlog.queries import Cursor, EventFilter, Line, LineKind, actors, log_page, whole_log
from ftdash.flink_clusters.models import FlinkCluster, FlinkEvent, FlinkEventKind, FlinkJob
from ftdash.gameday import services
from ftdash.gameday.models import Fault
from ftdash.jobs.models import Request, StatusChange
from ftdash.lab.models import Lab
from ftdash.points.services.disposal import label_savepoint
from ftdash.projection.projector import Projector
from ftdash.requests.services import ask
from ftdash.watching.models import RunEvent, RunEventKind, WatchedQuery
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import Cancel, TakeSavepoint
from pipelines.domain.events import (
    CheckpointDiscarded,
    CheckpointFailed,
    DamageRemembered,
    LeftoversDiscarded,
    LeftoversKept,
    OutputSuperseded,
    RestorePointRefused,
    TargetTakenOver,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.status import CheckpointKind, DamageFinder
from tests.web.fetching import fetch
from tests.web.journals import (
    Story,
    StoryClock,
    new_request,
    new_run,
    published_again,
    quarantined,
)

pytestmark = pytest.mark.usefixtures("site", "patient")

TWICE = "readers see them twice"
EXPIRED = "Checkpoint expired before completing."


def test_the_log_has_every_kind_of_line_newest_first() -> None:
    eventful()

    lines = whole(EventFilter())

    assert {line.kind for line in lines} == set(LineKind)
    assert [line.at for line in lines] == sorted((line.at for line in lines), reverse=True)
    assert all(line.what for line in lines)


def test_an_action_says_who_asked_when_and_why_and_how_it_ended() -> None:
    run = new_run()
    request = new_request(run, Cancel(), phase="SUCCEEDED", message="It is cancelled.")

    [line] = whole(EventFilter(kind=LineKind.ACTION))

    assert (line.actor, line.why, line.what, line.outcome) == (
        "ann",
        "upgrade",
        "asked for: cancel",
        "succeeded: It is cancelled.",
    )
    assert (line.pipeline, line.run_id, line.at) == ("flights", "flights-1", request.created_at)


def test_the_log_has_cleaned_up_and_kept_leftovers_and_takeovers() -> None:
    story = eventful()
    runs = (RunId("flights-7"), RunId("flights-8"))
    story.tell(
        LeftoversDiscarded(
            sink=Uid("pages"),
            target="the directory /out",
            what="hidden files",
            count=9,
            runs=runs,
            run_count=4,
            size_bytes=2_048,
        ),
        LeftoversKept(
            sink=Uid("pages"), target="the directory /out", what="unfinished output", why="It is."
        ),
    )
    Projector().run_once()

    told = {
        (line.what, line.outcome, line.why) for line in whole(EventFilter(kind=LineKind.CLEAN_UP))
    }
    [takeover] = whole(EventFilter(kind=LineKind.TAKEOVER))

    assert told == {
        (
            "5 prepared transactions of delays in table delays",
            "cleaned up: left by run flights-0",
            "",
        ),
        (
            "9 hidden files (2.05 kB) of pages in the directory /out",
            "cleaned up: left by run flights-7, run flights-8 and 2 more",
            "",
        ),
        ("unfinished output of pages in the directory /out", "kept", "It is."),
    }
    assert (takeover.what, takeover.outcome) == (
        "table delays was taken over for delays",
        "run flights-9 of installation night shift may not write there any more",
    )


def test_a_refused_stranger_is_not_called_an_ended_attempt() -> None:
    story = Story(new_run()).started()
    for attempt in (0, 1):
        story.tell(ZombieRefused(zombie_attempt=Attempt(attempt), what=f"caller {attempt}"))
    Projector().run_once()

    told = {line.what: line.outcome for line in whole(EventFilter(kind=LineKind.REFUSAL))}

    assert told == {"caller 0": "refused: a stranger", "caller 1": "refused: attempt 1 is over"}


def test_damage_names_the_file_the_finder_and_the_consequence() -> None:
    story = Story(new_run()).started()
    story.tell(
        DamageRemembered(
            files=["c1-a1-base", "c1-a1-delta"],
            points=["/chk-1", "/chk-2"],
            found_by=DamageFinder.RESTORE,
            message="c1-a1-base is missing.",
            remembered=["c1-a1-base", "c1-a1-delta"],
        ),
        DamageRemembered(mended=["c1-a1-base"], remembered=["c1-a1-delta"]),
        DamageRemembered(mended=["c1-a1-delta"]),
    )
    Projector().run_once()

    lines = whole(EventFilter(kind=LineKind.DAMAGE))[::-1]

    assert [(line.what, line.outcome, line.why) for line in lines] == [
        (
            "the shared file c1-a1-base and 1 more are damaged, found by a slot that loaded its"
            " state",
            "2 points refer to it; the next checkpoint writes the content again",
            "c1-a1-base is missing.",
        ),
        ("the shared file c1-a1-base is whole again", "known to be damaged and left: 1", ""),
        ("the shared file c1-a1-delta is whole again", "no known damage is left", ""),
    ]


def test_the_log_has_changes_of_settings_and_alerts() -> None:
    eventful()
    Alert.objects.update(
        cleared_at=timezone.now(), cleared_because="It is back.", acknowledged_by="ann"
    )

    [setting] = whole(EventFilter(kind=LineKind.SETTING))
    [alert] = whole(EventFilter(kind=LineKind.ALERT))

    assert (setting.what, setting.actor, setting.why) == (
        "invited person olaf (operator)",
        "eve",
        "new",
    )
    assert (alert.what, alert.outcome, alert.actor, alert.pipeline) == (
        "alert: late, at 4.50 s above 3.00 s",
        "cleared: It is back.",
        "ann",
        "flights",
    )


def test_a_later_label_of_a_savepoint_does_not_change_earlier_lines() -> None:
    story = Story(new_run()).started().completed(CheckpointKind.SAVEPOINT, path="/points/sp-1")
    Projector().run_once()
    naming = {"pipeline": "flights", "path": "/points/sp-1", "requester": "bo", "reason": "why"}
    for label in ("at noon", ""):
        ask("flights", TakeSavepoint(label=label), who="bo", why="first")
    label_savepoint(**naming, label="before the move")
    before = whole(EventFilter(kind=LineKind.ACTION))

    label_savepoint(**naming, label="")

    named = [line for line in whole(EventFilter()) if line.actor == "bo"]
    assert named[1:] == before
    assert [(line.what, line.why) for line in named] == [
        ("asked for: label a savepoint: /points/sp-1 is called by no name", "why"),
        ("asked for: label a savepoint: /points/sp-1 is called 'before the move'", "why"),
        ("asked for: savepoint", "first"),
        ("asked for: savepoint, to be called 'at noon'", "first"),
    ]
    assert {line.pipeline for line in named} == {story.run.pipeline.name}


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_pages_give_every_line_once_in_the_same_order(limit: int) -> None:
    eventful()
    now = timezone.now()  # many events at one moment, and of several kinds
    StatusChange.objects.update(at=now)
    Request.objects.update(created_at=now)
    Checkpoint.objects.update(trigger_at=now)
    everything = whole(EventFilter())

    found: list[Line] = []
    place: str | None = ""
    while place is not None and len(found) <= len(everything):
        page = log_page(EventFilter(), Cursor.parse(place), limit)
        found += page.lines
        place = page.older

    assert found == everything
    assert len({(line.source, line.row) for line in found}) == len(found)


def test_new_lines_do_not_shift_an_older_page() -> None:
    eventful()
    first = log_page(EventFilter(), None, 3)
    before = log_page(EventFilter(), Cursor.parse(first.older or ""), 3).lines

    new_request(new_run("other"))

    assert log_page(EventFilter(), Cursor.parse(first.older or ""), 3).lines == before


def test_the_log_is_filtered_by_pipeline_kind_person_and_time() -> None:
    eventful()
    new_request(new_run("other"), requester="bob")
    now = timezone.now()

    def found(**filters: object) -> set[str]:
        return {line.what for line in whole(EventFilter(**filters))}  # type: ignore[arg-type]

    assert {line.pipeline for line in whole(EventFilter(pipeline="other"))} == {"other"}
    assert {line.kind for line in whole(EventFilter(kind=LineKind.REFUSAL))} == {LineKind.REFUSAL}
    assert found(actor="bob") == {"asked for: savepoint"}
    assert found(since=now + timedelta(days=1)) == set()
    assert found(until=now - timedelta(days=1)) == set()
    assert found(since=now - timedelta(days=1)) == found()


def test_routine_checkpoints_are_left_out_unless_asked_for() -> None:
    eventful().completed().completed(CheckpointKind.SAVEPOINT).triggered().tell(
        CheckpointFailed(
            checkpoint_id=CheckpointId(4),
            reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
            message="5 of 8 subtasks had acknowledged.",
        )
    )
    Projector().run_once()

    filters = EventFilter(kind=LineKind.CHECKPOINT, with_routine=False)
    lines = whole(filters)

    assert [(line.what, line.outcome) for line in lines] == [
        ("checkpoint 4", "failed"),
        ("savepoint 3", "completed in 80 ms"),
    ]
    assert len(whole(EventFilter(kind=LineKind.CHECKPOINT))) == 4


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("5 of 8 subtasks had acknowledged.", f"{EXPIRED} 5 of 8 subtasks had acknowledged."),
        (EXPIRED, EXPIRED),
        ("", EXPIRED),
    ],
)
def test_a_failed_checkpoint_states_its_reason_once_with_the_message(
    operator: Client, message: str, why: str
) -> None:
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    failed = CheckpointFailed(checkpoint_id=CheckpointId(1), reason=reason, message=message)
    Story(new_run()).started().triggered().tell(failed)
    Projector().run_once()

    [line] = whole(EventFilter(kind=LineKind.CHECKPOINT))
    address = "/pipelines/flights/checkpoints/"
    notice = re.search(r'<p class="notice is-bad">(.*?)</p>', text_of(operator, f"{address}1/"))
    latest = re.search(rf'<td class="path">({EXPIRED}.*?)</td>', text_of(operator, address))

    assert line.why == why
    assert [visible(found) for found in (notice, latest)] == [why, why]


def test_a_discarded_checkpoint_is_still_listed_as_completed() -> None:
    eventful().tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)))
    Projector().run_once()

    [line] = whole(EventFilter(kind=LineKind.CHECKPOINT))

    assert line.outcome == "completed in 80 ms, discarded since"


@pytest.mark.parametrize(("kind", "has_it"), [("", False), ("everything", True)])
def test_the_page_leaves_out_routine_checkpoints_by_default(
    operator: Client, kind: str, has_it: bool
) -> None:
    eventful()

    page = text_of(operator, f"/events/?kind={kind}")

    assert (">checkpoint 1<" in page) == has_it


def test_the_filter_offers_everyone_who_asked_for_something() -> None:
    eventful()

    assert actors() == ["ada", "ann", "eve"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2026-11-21T10:00:00~1~1",
        "2026-11-21T10:00:00Z~a~1",
        "~~",
        f"x~0~{2**80}",
        "0001-01-01T00:00:00+14:00~1~1",
    ],
)
def test_an_invalid_cursor_parses_to_none(text: str) -> None:
    assert Cursor.parse(text) is None


def test_a_cursor_survives_writing_and_parsing() -> None:
    place = Cursor(timezone.now(), 3, 77)

    assert Cursor.parse(str(place)) == place


def test_an_operator_filters_the_log_and_pages_to_older_lines(operator: Client) -> None:
    story = eventful()
    for _ in range(60):
        story.completed()
    Projector().run_once()

    page = text_of(operator, "/events/?kind=checkpoint")
    older = re.search(r'href="(\?[^"]*before=[^"]+)"', page)
    assert older is not None
    second = text_of(operator, "/events/" + unescape(older[1]))

    assert "The newest 50 lines, newest first." in page
    assert "checkpoint 61" in page
    assert ">checkpoint 1<" in second
    assert 'href="?kind=checkpoint">Newest</a>' in second
    assert "asked for: savepoint" not in second


def test_texts_from_users_are_escaped(operator: Client) -> None:
    new_request(new_run(), reason="<script>alert(1)</script>", requester="<b>eve</b>")

    page = text_of(operator, "/events/")

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "<b>eve" not in page
    assert "&lt;b&gt;eve" in page


def test_a_refresh_of_the_page_keeps_the_filter(operator: Client) -> None:
    eventful()

    regions = text_of(operator, "/events/regions/?kind=lab")

    assert 'id="region-lines" hx-swap-oob="true"' in regions
    assert "requested lab" in regions
    assert "asked for: savepoint" not in regions


def test_invalid_filters_are_reported_and_filter_nothing(operator: Client) -> None:
    eventful()

    page = text_of(operator, "/events/?kind=dance&since=yesterday&before=now")

    assert "Select a valid choice" in page
    assert "Enter a valid date/time." in page
    assert "asked for: savepoint" in page


@pytest.mark.django_db(transaction=True)
def test_the_export_has_the_lines_of_the_page_and_all_older_ones(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "BATCH", 2)
    eventful()
    new_request(new_run("other"), reason="=1+1")

    _, headers, _ = fetch("/events/csv/")
    rows = list(csv.DictReader(StringIO(sent("/events/csv/?kind=action"))))
    lines = json.loads(sent("/events/json/"))

    assert headers["Content-Disposition"] == 'attachment; filename="events.csv"'
    assert [(row["kind"], row["pipeline"], row["why"]) for row in rows] == [
        ("action", "other", "'=1+1"),  # otherwise a spreadsheet would compute it
        ("action", "flights", "upgrade"),
    ]
    assert [line["what"] for line in lines] == [
        line.what for line in whole(EventFilter(with_routine=False))
    ]
    assert json.loads(sent("/events/json/?since=2100-01-01T00:00")) == []
    assert fetch("/events/csv/?since=soon")[0] == 400
    assert "/events/csv/?kind=action" in text_of(operator, "/events/?kind=action")


def test_output_published_again_is_a_line_with_or_without_a_count() -> None:
    story = Story(new_run()).started()
    bound = msgspec.structs.replace(published_again(640), is_at_most=True)
    story.tell(bound, published_again(None))
    Projector().run_once()

    lines = whole(EventFilter(kind=LineKind.REPEATED))

    assert [(line.what, line.outcome) for line in lines] == [
        ("topic publishes an unknown number of records again to topic t", TWICE),
        ("topic publishes up to 640 records again to topic t", TWICE),
    ]


def test_an_empty_log_says_so(operator: Client) -> None:
    assert "Nothing of that kind is kept." in text_of(operator, "/events/")


def whole(filters: EventFilter) -> list[Line]:
    return list(chain.from_iterable(whole_log(filters)))


def eventful() -> Story:
    run = new_run()
    new_request(run)
    story = Story(run, StoryClock(StoryClock().now_ms - 20_000)).started().completed().slot_killed()
    story.tell(
        RestorePointRefused(path="chk-1", message="chk-1/a.arrow is truncated."),
        ZombieRefused(zombie_attempt=Attempt(1), what="slot 1 acknowledged"),
        OutputSuperseded(sink=Uid("delays"), files=3, moved_to="superseded/1"),
        published_again(1_600),
        LeftoversDiscarded(
            sink=Uid("delays"),
            target="table delays",
            what="prepared transactions",
            count=5,
            runs=(RunId("flights-0"),),
            run_count=1,
        ),
        TargetTakenOver(
            sink=Uid("delays"),
            target="table delays",
            from_run=RunId("flights-9"),
            from_installation="night shift",
            epoch=3,
        ),
        quarantined(7, count=1),
        DamageRemembered(files=["c1-a1-base"], message="c1-a1-base is missing."),
    )
    Projector().run_once()
    now = timezone.now()
    Audit.objects.create(run=run, requester="eve", created_at=now)
    AdminAction.objects.create(
        at=now, who="eve", what="invited", subject="person olaf", detail="operator", reason="new"
    )
    Alert.objects.create(
        rule_name="late",
        watched="EVENT_TIME_LAG",
        pipeline=run.pipeline,
        fire_above=3.0,
        fired_at=now,
        fired_value=4.5,
    )
    query = WatchedQuery.objects.create(name="orders", created_by="eve", created_at=now)
    RunEvent.objects.create(
        query=query,
        run_id="r1",
        kind=RunEventKind.FAILED,
        at=now,
        error_class="DIVIDE_BY_ZERO",
        message="boom",
    )
    cluster = FlinkCluster.objects.create(name="prod", created_by="eve", created_at=now, due_at=now)
    job = FlinkJob.objects.create(
        cluster=cluster,
        jid="a" * 32,
        name="counted",
        state="RUNNING",
        started_at=now,
        listed_at=now,
    )
    FlinkEvent.objects.create(job=job, kind=FlinkEventKind.STATE, at=now, title="RUNNING")
    Lab.objects.create(options={}, requested_by="eve", reason="to compare", asked_at=now)
    services.start_game_day(
        pipeline="flights", fault=Fault.KILL_DRIVER, slot=None, requester="ada", reason="to see"
    )
    return story


def sent(address: str) -> str:
    return b"".join(fetch(address)[2]).decode()


def visible(found: re.Match[str] | None) -> str:
    """Returns the text of the first group, without its tags."""
    return re.sub("<.*?>", "", found[1]).strip() if found else "not found"


def text_of(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()
