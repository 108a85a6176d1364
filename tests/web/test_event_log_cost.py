"""The cost of the event log: indexes for each order, each row read once, names for forms."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from ftdash.eventlog import queries
from ftdash.eventlog.queries import SOURCES, Cursor, EventFilter, LineKind, log_page, whole_log
from ftdash.projection.projector import Projector
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.usefixtures("site", "patient")

Execute = Callable[..., Any]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the plans are SQLite's")
@pytest.mark.parametrize("with_routine", [True, False])
def test_a_page_at_any_depth_is_read_along_indexes(with_routine: bool) -> None:
    filters = EventFilter(with_routine=with_routine)
    places = [Cursor(timezone.now(), index, 7) for index in range(len(SOURCES))]

    with explained() as plans:
        for place in (None, *places):
            log_page(filters, place, 50)

    assert len(plans) == len(SOURCES) * (1 + len(SOURCES))
    for plan in plans:
        assert "TEMP B-TREE" not in plan, plan
        assert re.search(r"USING INDEX \w+_at\b", plan.splitlines()[0]), plan
    for plan in plans[len(SOURCES) :]:
        assert plan.startswith("SEARCH"), f"read from the beginning: {plan}"


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the plans are SQLite's")
def test_an_index_skips_routine_checkpoints_that_are_left_out() -> None:
    with explained() as plans:
        log_page(EventFilter(kind=LineKind.CHECKPOINT, with_routine=False), None, 50)

    [plan] = plans
    assert "checkpoint_not_routine_at" in plan


def test_the_whole_log_is_read_once_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "BATCH", 5)
    story_of(100)

    with counted() as statements:
        lines = [line for batch in whole_log(EventFilter()) for line in batch]

    assert len(lines) > 100
    assert len(statements) <= len(lines) / 5 + len(SOURCES)


def test_a_refresh_does_not_query_names(operator: Client) -> None:
    story_of(1)

    with counted() as statements:
        operator.get("/events/regions/")

    assert not [each for each in statements if "DISTINCT" in each]


def test_the_page_needs_no_more_queries_for_many_pipelines(operator: Client) -> None:
    new_run("one")
    with counted() as before:
        operator.get("/events/")
    for name in ("two", "three", "four"):
        Story(new_run(name)).started().sampled().completed()
    Projector().run_once()

    with counted() as after:
        page = operator.get("/events/?pipeline=one").content.decode()

    assert len(after) <= len(before)
    assert '<option value="one" selected>one</option>' in page
    assert '<option value="four">four</option>' in page


def test_a_person_without_lines_stays_selected_in_the_filter(operator: Client) -> None:
    story_of(1)

    for address in ("/events/?actor=nobody", "/events/regions/?actor=nobody"):
        page = operator.get(address).content.decode()

        assert "Nothing of that kind is kept." in page
    page = operator.get("/events/?actor=nobody").content.decode()
    assert '<option value="nobody" selected>nobody</option>' in page


def story_of(checkpoints: int) -> None:
    story = Story(new_run()).started()
    with story.in_one_go():
        for _ in range(checkpoints):
            story.completed()
    Projector().run_once()


@contextmanager
def explained() -> Iterator[list[str]]:
    """Collects the query plan of each statement when it runs; its parameters stay separate."""
    plans: list[str] = []

    def explain(execute: Execute, sql: str, params: Any, many: bool, context: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            plans.append("\n".join(row[-1] for row in cursor.cursor.fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield plans


@contextmanager
def counted() -> Iterator[list[str]]:
    statements: list[str] = []

    def count(execute: Execute, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        yield statements
