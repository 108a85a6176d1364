"""The pages of game days: all users read them, some may begin one, and what is refused."""

import json
from html import unescape
from io import StringIO
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.gameday import services
from ftdash.gameday.management.commands import gameday
from ftdash.gameday.models import Fault, GameDay, GameDayState, GameDayVerdict
from ftdash.gameday.scoring import Measures, Seen
from ftdash.jobs.models import Pipeline, Request
from ftdash.projection.projector import Projector
from pipelines.domain.commands import RequestKind
from pipelines.domain.status import JobStatus
from tests.web.journals import Story, new_run
from tests.web.page_words import text_of, words_of
from tests.web.people import admin_user, signed_in

pytestmark = pytest.mark.usefixtures("site", "patient")

FORM = {"fault": "KILL_SLOT", "slot": "1", "reason": "to see", "confirmation": "flights"}
START = "/pipelines/flights/game-day/start/"
MEASURES = Measures(
    detection_ms=12.0,
    recovery_ms=300.0,
    phases={"detect": 12.0, "restore": 80.0},
    records_replayed=1_234,
)


def test_before_the_first_game_day_the_page_says_what_to_do(operator: Client) -> None:
    words = words_of(operator, "/game-day/")

    assert "No game day has ended yet." in words
    assert "You can inject a fault into a running pipeline that allows faults." in words
    assert "No pipeline can take a fault yet." in words


def test_an_operator_reads_the_score_but_gets_no_link_to_start(operator: Client) -> None:
    running()
    ended(GameDayVerdict.PASSED)
    ended(GameDayVerdict.FAILED)
    ended(GameDayVerdict.NOT_HAPPENED)

    words, page = words_of(operator, "/game-day/"), text_of(operator, "/game-day/")

    assert "1 of 2 game days that took effect passed." in words
    assert "The slowest recovery took 300 ms: kill a slot, flights." in words
    assert "flights kill a slot 2 1 1 0 1 12 ms 300 ms 300 ms did not happen" in words
    assert "Beginning one needs the admin role." in words
    assert START not in page


@pytest.mark.parametrize(
    "address", ["/game-day/", "/pipelines/flights/game-day/", "/game-day/{key}/"]
)
def test_a_game_day_under_way_is_shown_with_its_progress(operator: Client, address: str) -> None:
    running()
    key = services.start_game_day(
        pipeline="flights", fault=Fault.KILL_SLOT, slot=1, requester="ada", reason="to see"
    )
    GameDay.objects.update(state=GameDayState.RECOVERING, why="Not all subtasks run again yet.")

    for end in ("", "regions/"):
        words = words_of(operator, address.format(key=key) + end)
        assert "Recovering" in words
        assert "Not all subtasks run again yet." in words
        assert "ada" in words


def test_the_page_of_a_game_day_shows_its_findings_and_phases(operator: Client) -> None:
    running()
    key = ended(GameDayVerdict.PASSED)

    words = words_of(operator, f"/game-day/{key}/")

    assert f"Game day {key}: kill a slot" in words
    assert "✓ It took effect: Slot 1 is gone." in words
    assert "✓ All subtasks ran again after 300 ms, from the beginning, with 1,234 records" in words
    assert "Detect Decide Stop Backoff Start Restore" in words
    assert "12 ms – – – – 80 ms" in words


def test_a_game_day_that_no_worker_has_taken_up_says_so(operator: Client) -> None:
    running()
    key = services.start_game_day(
        pipeline="flights", fault=Fault.KILL_DRIVER, slot=None, requester="ada", reason="to see"
    )

    assert "A worker starts it within seconds." in words_of(operator, f"/game-day/{key}/")


@pytest.mark.parametrize("address", ["/game-day/77/", "/pipelines/nothing/game-day/"])
def test_unknown_names_are_not_found(operator: Client, address: str) -> None:
    assert operator.get(address).status_code == 404


def test_an_admin_starts_a_game_day_after_reading_what_is_at_stake(admin: Client) -> None:
    running()
    ended(GameDayVerdict.PASSED)
    assert f'href="{START}"' in text_of(admin, "/game-day/")
    asking = words_of(admin, START)

    answer = admin.post(START, FORM)

    assert "about 0 records read since checkpoint 1 are read again" in asking
    assert "readers of its output wait; it was 300 ms at the longest so far." in asking
    day = GameDay.objects.get(state=GameDayState.ASKED)
    assert answer["Location"] == f"/game-day/{day.pk}/"
    assert (day.fault, day.slot, day.requester, day.reason) == ("KILL_SLOT", 1, "ada", "to see")


def test_the_first_game_day_of_a_pipeline_says_that_the_delay_is_unknown(admin: Client) -> None:
    running()

    assert "how long is not known yet: this is its first." in words_of(admin, START)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"confirmation": "fligths"}, "The name of this pipeline is flights."),
        ({"reason": ""}, "This field is required."),
        ({"fault": "FLOOD"}, "Select a valid choice."),
        ({"slot": "9"}, "Select a valid choice."),
        ({"slot": ""}, "Name the slot that is to be hit; there are 0 to 1."),
    ],
)
def test_a_refusal_is_shown_in_the_form_and_stores_nothing(
    admin: Client, change: Any, told: str
) -> None:
    running()

    answer = admin.post(START, FORM | change)

    assert answer.status_code == 422
    assert told in unescape(answer.content.decode())
    assert not GameDay.objects.exists()


def test_a_pipeline_that_forbids_faults_says_so_in_the_form_and_refuses(admin: Client) -> None:
    running()
    Pipeline.objects.update(allows_faults=False)

    asking, answer = words_of(admin, START), admin.post(START, FORM)

    told = "flights does not allow faults on purpose; an admin may allow them."
    assert told in asking
    assert told in words_of(admin, "/game-day/")
    assert (answer.status_code, told in answer.content.decode()) == (422, True)


def test_an_admin_allows_faults_and_the_request_is_stored(admin: Client) -> None:
    running()
    Pipeline.objects.update(allows_faults=False)
    address = reverse("act", args=["flights", "faults"])
    assert "flights does not allow faults on purpose now." in words_of(admin, address)

    admin.post(address, {"is_allowed": "on", "reason": "game day on Monday"})

    assert Pipeline.objects.get().allows_faults
    kept = Request.objects.get(kind=RequestKind.ALLOW_FAULTS)
    assert (kept.requester, kept.reason) == ("ada", "game day on Monday")


def test_the_game_day_page_takes_few_queries_for_many_pipelines(
    operator: Client, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        new_run(f"flow-{number}")

    with django_assert_max_num_queries(20):
        words = words_of(operator, "/game-day/")

    assert "flow-29 flow-29 is CREATED; this needs it to be RUNNING." in words


def test_an_operator_may_not_start_a_game_day(operator: Client) -> None:
    running()

    assert operator.get(START).status_code == 403
    assert operator.post(START, FORM).status_code == 403
    assert not GameDay.objects.exists()


def test_without_the_csrf_token_no_game_day_starts() -> None:
    running()
    client = signed_in(admin_user(), enforce_csrf_checks=True)

    assert client.post(START, FORM).status_code == 403
    assert not GameDay.objects.exists()


def test_programs_start_and_read_game_days_through_the_api(admin: Client) -> None:
    running()

    asked = admin.post(
        "/api/pipelines/flights/game-days",
        {"fault": "KILL_SLOT", "slot": 0, "reason": "nightly"},
        content_type="application/json",
    )
    key = asked.json()["key"]

    assert asked.status_code == 202
    assert admin.get(f"/api/game-days/{key}").json()["state"] == "ASKED"
    assert admin.get("/api/game-days?pipeline=flights").json()["days"][0]["key"] == key
    assert admin.get("/api/game-days/99").status_code == 404


def test_the_command_follows_a_game_day_to_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    running()
    monkeypatch.setattr(gameday.time, "sleep", lambda _: services.reconcile())

    refusal = "There is no slot 5; choose 0 to 1."
    with pytest.raises(CommandError, match=refusal) as refused:
        call_command("gameday", "flights", "kill-slot", "--slot", "5")
    with pytest.raises(CommandError, match="did not happen: ") as missed:
        call_command("gameday", "flights", "kill-driver", stdout=StringIO(), stderr=StringIO())
    GameDay.objects.update(verdict=GameDayVerdict.PASSED)
    out = StringIO()
    call_command("gameday", "flights", "--list", "--json", stdout=out)

    assert (refused.value.returncode, missed.value.returncode) == (2, 1)
    assert json.loads(out.getvalue())[0]["verdict"] == "PASSED"


def test_the_command_needs_a_pipeline_and_a_fault() -> None:
    with pytest.raises(CommandError, match="Name a pipeline and a fault"):
        call_command("gameday", "flights")


def test_the_command_prints_a_passed_game_day_and_ends_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running()

    def pass_it(_: float) -> None:
        GameDay.objects.update(
            state=GameDayState.ENDED,
            verdict=GameDayVerdict.PASSED,
            seen=seen(),
            ended_at=timezone.now(),
        )

    monkeypatch.setattr(gameday.time, "sleep", pass_it)
    out = StringIO()

    call_command("gameday", "flights", "kill-driver", stdout=out, stderr=StringIO())

    assert "kill the driver  passed" in out.getvalue()
    assert "recovery_ms=300.0" in out.getvalue()


def running() -> None:
    Story(new_run()).started().sampled(0.0).completed()
    Projector().run_once()


def seen() -> object:
    now = timezone.now()
    return msgspec.to_builtins(
        Seen(
            now=now,
            status=JobStatus.RUNNING,
            injected_at=now,
            failed_at=now,
            cause="Slot 1 is gone.",
            running_at=now,
            measures=MEASURES,
        )
    )


def ended(verdict: GameDayVerdict) -> int:
    pipeline = Pipeline.objects.get()
    now = timezone.now()
    return GameDay.objects.create(
        pipeline=pipeline,
        run=pipeline.runs.get(),
        fault=Fault.KILL_SLOT,
        slot=1,
        requester="ada",
        reason="to see",
        state=GameDayState.ENDED,
        asked_at=now,
        injected_at=now,
        ended_at=now,
        verdict=verdict,
        why="So it was.",
        seen=seen(),
    ).pk
