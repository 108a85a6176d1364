"""Listeners' reports are stored once, in any order of arrival, and have no other effect."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from ftdash.accounts import services as accounts
from ftdash.accounts.models import TokenScope
from ftdash.watching import queries
from ftdash.watching.models import RunEvent, WatchedBatch, WatchedQuery
from ftdash.watching.progress import understood
from ftdash.watching.query_status import QueryState, QueryStatus
from ftdash.watching.services import registration, reports
from ftdash.watching.services.registration import Sighting
from tests.web.api_callers import bearer
from tests.web.people import admin_user, signed_in
from tests.web.watched import BEGAN, EVENTS, LISTENER, QUERY, RUN, listener, progress, report, said

pytestmark = pytest.mark.usefixtures("site")

LATER_RUN = "33333333-aaaa-4444-8888-000000000002"
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


def a_story() -> list[dict[str, object]]:
    """Returns the events of two runs, the first of them failed."""
    failed_at, restarted_at = BEGAN + timedelta(seconds=35), BEGAN + timedelta(seconds=60)
    return [
        said("started", BEGAN, name="orders"),
        *(progress(number) for number in range(3)),
        said("terminated", failed_at, exception="boom\nat x", errorClass="STREAM_FAILED"),
        said("started", restarted_at, run=LATER_RUN, name="orders"),
        progress(3, run=LATER_RUN, at=restarted_at + timedelta(seconds=1), rows=0),
        said("idle", restarted_at + timedelta(seconds=20), run=LATER_RUN),
    ]


def test_a_report_becomes_a_query_with_its_batches_runs_and_clocks() -> None:
    answer = report(listener(), *a_story())

    assert answer.status_code == 200, answer.content
    assert answer.json() == {"taken": 8, "ignored": 0, "problems": []}
    found = queries.detail("orders", page=1, per_page=10)
    assert found is not None
    brief = found.brief
    assert (brief.query_id, brief.run_id, brief.restart_count) == (QUERY, LATER_RUN, 1)
    assert brief.last_committed_at == BEGAN + timedelta(seconds=61.8)
    assert brief.data_moved_at == BEGAN + timedelta(seconds=20.8)
    assert [each.figures.batch_id for each in found.batches.rows] == [3, 2, 1, 0]
    assert [(e.kind.label, e.error_class) for e in found.run_events] == [
        ("started", ""),
        ("failed", "STREAM_FAILED"),
        ("started", ""),
    ]
    newest = found.batches.rows[1].figures
    assert newest.phases_ms["walCommit"] == 60
    assert newest.sources[0]["lag"] == {"orders/0": 240, "orders/1": 0, "total": 240}
    assert newest.operators[0]["dropped"] == 3
    assert newest.operators[0]["metrics"] == {"loadedMapCacheHitCount": 40}
    assert newest.sink == {"description": "FileSink[/data/out]", "rows": None}


def test_a_report_with_characters_that_no_store_can_hold_is_stored_without_them() -> None:
    failed_at = BEGAN + timedelta(seconds=35)
    batch = progress(0)
    batch["progress"]["sink"] = {"description": "Sink\0[\udc80]"}

    [one, two], problems = understood(
        [batch, said("terminated", failed_at, exception="boom \0\udc80")], NOW
    )

    assert problems == []
    assert one.batch is not None
    assert one.batch.sink is not None
    assert one.batch.sink["description"] == "Sink\u2400[?]"
    assert two.exception == "boom \u2400?"


@pytest.mark.parametrize("seed", range(6))
def test_repeated_and_reordered_events_leave_the_same_rows(seed: int) -> None:
    rng, client = random.Random(seed), listener()
    shuffled = [*a_story(), *a_story()]
    rng.shuffle(shuffled)

    while shuffled:
        taken = rng.randint(1, 5)
        assert report(client, *shuffled[:taken]).status_code == 200
        del shuffled[:taken]

    row = WatchedQuery.objects.get()
    assert WatchedBatch.objects.count() == 4
    assert RunEvent.objects.count() == 3
    assert row.restart_count == 1
    assert reports.status_of(row) == status_of(a_story())


def test_a_standing_does_not_depend_on_the_order_of_its_events() -> None:
    rng, expected = random.Random(7), status_of(a_story())

    for _ in range(50):
        shuffled = [*a_story(), *rng.sample(a_story(), 4)]
        rng.shuffle(shuffled)
        assert status_of(shuffled) == expected


@pytest.mark.parametrize(
    ("count", "after", "expected"),
    [
        (0, timedelta(0), QueryState.UNKNOWN),
        (4, timedelta(seconds=30), QueryState.RUNNING),
        (5, timedelta(seconds=40), QueryState.FAILED),
        (6, timedelta(seconds=61), QueryState.RUNNING),
        (8, timedelta(seconds=85), QueryState.IDLE),
        (8, timedelta(seconds=200), QueryState.STALE),
    ],
)
def test_the_state_follows_the_newest_run(
    count: int, after: timedelta, expected: QueryState
) -> None:
    assert status_of(a_story()[:count]).state(BEGAN + after) is expected


def test_a_malformed_event_does_not_reject_the_others() -> None:
    wrong = progress(1)
    wrong["progress"]["batchId"] = "seven"
    ahead = progress(5, at=datetime.now(UTC) + timedelta(days=2))
    answer = report(listener(), progress(0), wrong, {"kind": "started"}, ahead, progress(2))

    assert answer.json()["taken"] == 2
    first, second, third = answer.json()["problems"]
    assert first.startswith("events.1: Expected `int`, got `str`")
    assert second == "events.2: an event of kind 'started' needs id, runId and timestamp"
    assert third.endswith("lies in the future; check the driver's clock")
    assert WatchedBatch.objects.count() == 2


def test_dropped_events_are_counted_per_listener_and_never_go_down() -> None:
    client = listener()
    report(client, progress(0), dropped={QUERY: 7})
    report(client, progress(1), dropped={QUERY: 3})
    report(client, progress(2), dropped={QUERY: 5}, listener="another")

    found = queries.brief("orders")
    assert found is not None
    assert found.dropped_events == 12


def test_a_listen_token_reports_and_opens_nothing_else() -> None:
    client = listener()
    report(client, progress(0))

    for address in ("/api/pipelines", "/api/watched-queries", "/metrics", "/jobs/overview"):
        answer = client.get(address)
        assert answer.status_code == 403, address
        assert "only reports progress" in answer.content.decode()


@pytest.mark.parametrize("scope", [each for each in TokenScope if each is not TokenScope.LISTEN])
def test_other_tokens_may_not_report(scope: TokenScope) -> None:
    answer = report(bearer(scope, "other"), progress(0))

    assert answer.status_code == 403
    assert answer.json()["errors"] == [
        "Reporting progress of queries needs a token of scope 'listen'."
    ]
    assert not WatchedQuery.objects.exists()


def test_a_session_does_not_report() -> None:
    assert report(signed_in(admin_user()), progress(0)).status_code == 403


def test_a_revoked_token_is_refused_with_one_sentence() -> None:
    client = listener()
    accounts.revoke_token(name="job", revoked_by="ada", reason="leaked")

    answer = report(client, progress(0))

    assert answer.status_code == 401
    assert answer.json()["errors"] == [
        "This token is not valid; it was mistyped, was revoked or has expired."
    ]
    assert Client().post(EVENTS).status_code == 401


def test_two_queries_of_one_name_get_two_names() -> None:
    other = "99999999-aaaa-4444-8888-000000000009"
    report(listener(), progress(0), progress(0, query=other))

    assert {each.name for each in queries.watched()} == {"orders", f"orders-{other}"}


def test_a_removed_query_stays_removed_until_it_is_registered_again() -> None:
    client = listener()
    report(client, *a_story())
    registration.remove(name="orders", requester="ada", reason="gone")
    assert not WatchedBatch.objects.exists()

    answer = report(client, progress(9, run=LATER_RUN))

    assert answer.json() == {"taken": 0, "ignored": 1, "problems": []}
    assert queries.watched() == []
    seen = Sighting(query_id=QUERY)
    registration.watch(name="shop", seen=seen, requester="ada", reason="back")
    assert report(client, progress(10, run=LATER_RUN)).json()["taken"] == 1
    assert [each.name for each in queries.watched()] == ["shop"]


def test_a_run_gets_a_start_even_if_its_listener_joined_later() -> None:
    report(listener(), progress(7), listener=LISTENER)

    event = RunEvent.objects.get()
    assert (event.run_id, event.at) == (RUN, BEGAN + timedelta(seconds=70))


def status_of(events: list[dict[str, object]]) -> QueryStatus:
    told, problems = understood(events, NOW)
    assert problems == []
    status = QueryStatus()
    for each in told:
        status = status.after(each)
    return status
