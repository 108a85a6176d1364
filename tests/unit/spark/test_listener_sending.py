"""The listener's queue: nothing that a dashboard does affects the thread of a query."""

import time

import pytest
from ftdash_listener import sending
from ftdash_listener.sending import EVENTS_MAX, Reporter, Statistics

from tests.listener_dashboard import Dashboard
from tests.polling import wait_until

QUERY = "q"
PUT_MAX_S = 0.7
"""Less than the listener waits for an answer: a call that waited for one would take longer."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pauses between tries and the timeouts."""
    monkeypatch.setattr(sending, "PAUSE_S", 0.01)
    monkeypatch.setattr(sending, "PAUSE_MAX_S", 0.02)
    monkeypatch.setattr(sending, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(sending, "FAREWELL_S", 0.2)


def reporter_to(dashboard: Dashboard, token: str = "ftd_x") -> Reporter:
    reporter = Reporter(dashboard.url, token, {"spark": "4.3.0"})
    reporter.start()
    return reporter


def put(reporter: Reporter, count: int, begin: int = 0) -> float:
    """Reports `count` events, and returns the longest time that one call took, in seconds."""
    longest = 0.0
    for number in range(begin, begin + count):
        began = time.perf_counter()
        reporter.put(QUERY, f'{{"n": {number}}}')
        longest = max(longest, time.perf_counter() - began)
    return longest


def test_events_arrive_in_order_with_the_token() -> None:
    with Dashboard().serving() as dashboard:
        reporter = reporter_to(dashboard)
        put(reporter, 500)

        wait_until(lambda: len(dashboard.events) == 500)

    assert [event["n"] for event in dashboard.events] == list(range(500))
    assert len(dashboard.reports) >= 3  # at most 200 in one
    assert dashboard.tokens == {"Bearer ftd_x"}
    wait_until(lambda: reporter.statistics() == Statistics(0, 500, 0))


@pytest.mark.parametrize("status", [500, 503, 429, None], ids=str)
def test_events_that_a_failing_dashboard_missed_arrive_once_it_recovers(status: int | None) -> None:
    with Dashboard(status=status).serving() as dashboard:
        reporter = reporter_to(dashboard)
        put(reporter, 1)
        wait_until(lambda: dashboard.asked >= 1)
        longest = put(reporter, 49, begin=1)  # while a request is under way
        wait_until(lambda: dashboard.asked >= 2)

        dashboard.status = 200
        dashboard.over.set()

        wait_until(lambda: len(dashboard.events) == 50)
    assert longest < PUT_MAX_S
    assert reporter.statistics().dropped == 0


def test_a_restarted_dashboard_gets_the_newest_events_and_the_dropped_count() -> None:
    with Dashboard().serving() as dashboard:
        pass
    reporter = reporter_to(dashboard)

    longest = put(reporter, EVENTS_MAX + 300)

    assert longest < PUT_MAX_S
    assert reporter.statistics().queued <= EVENTS_MAX
    with dashboard.serving():
        wait_until(lambda: len(dashboard.events) == EVENTS_MAX)
        put(reporter, 1, begin=EVENTS_MAX + 300)
        wait_until(lambda: len(dashboard.events) == EVENTS_MAX + 1)
    assert dashboard.events[0]["n"] == 300
    assert dashboard.reports[-1]["dropped"] == {QUERY: 300}


def test_the_queue_of_events_is_bounded_in_bytes() -> None:
    with Dashboard().serving() as dashboard:
        pass
    reporter = reporter_to(dashboard)

    for _ in range(20):
        reporter.put(QUERY, f'"{"x" * 1_000_000}"')

    assert reporter.statistics().queued <= 8
    assert reporter.statistics().dropped >= 12


@pytest.mark.parametrize("status", [401, 403, 413, 422])
def test_events_that_retries_cannot_deliver_are_dropped_and_counted(status: int) -> None:
    with Dashboard(status=status).serving() as dashboard:
        reporter = reporter_to(dashboard)
        put(reporter, 5)

        wait_until(lambda: reporter.statistics().dropped == 5)
        dashboard.status = 200
        put(reporter, 1, begin=5)

        wait_until(lambda: len(dashboard.events) == 1)
    assert dashboard.reports[0]["dropped"] == {QUERY: 5}


def test_the_reporter_does_not_follow_a_redirect_with_its_token() -> None:
    with Dashboard().serving() as elsewhere, Dashboard(status=302).serving() as dashboard:
        dashboard.port, here = elsewhere.port, dashboard.port
        reporter = Reporter(f"http://127.0.0.1:{here}", "ftd_x", {})
        reporter.start()
        put(reporter, 1)

        wait_until(lambda: dashboard.asked >= 2)

    assert elsewhere.asked == 0


def test_closing_waits_for_the_last_report_but_not_for_a_hanging_one() -> None:
    with Dashboard().serving() as dashboard:
        reporter = reporter_to(dashboard)
        put(reporter, 3)
        reporter.close()
        assert len(dashboard.events) == 3

        dashboard.status = None
        hanging = reporter_to(dashboard)
        put(hanging, 3)
        began = time.perf_counter()
        hanging.close()
        assert time.perf_counter() - began < 2
