"""Marks of requests are deleted once no process delivers those requests any more, never before."""

import os
from datetime import timedelta

import pytest
from django.utils import timezone

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import OPEN_PHASES, Request, RequestPhase
from ftdash.tasks import shorten_run_files
from pipelines.bus.inbox import Inbox, submit
from pipelines.domain.ids import RequestId
from tests.web.journals import new_request, new_run

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture(autouse=True)
def a_month_is_kept(settings) -> None:
    settings.JOURNAL_RETENTION_DAYS = 30


def test_the_mark_of_a_request_that_ended_long_ago_is_deleted() -> None:
    request = done(RequestPhase.SUCCEEDED, days_ago=31)

    shorten_run_files()

    assert not is_marked(request)


@pytest.mark.parametrize("phase", OPEN_PHASES)
def test_the_mark_of_a_request_that_may_be_delivered_again_stays(phase: RequestPhase) -> None:
    """The worker that delivered the request died before it could record that."""
    request = done(phase, days_ago=31)

    shorten_run_files()

    assert is_marked(request)
    assert not submit(run_directory(request.run), request.command)


def test_a_young_mark_stays() -> None:
    request = done(RequestPhase.SUCCEEDED, days_ago=29)

    shorten_run_files()

    assert is_marked(request)


def done(phase: RequestPhase, days_ago: float) -> Request:
    request = new_request(new_run(), phase=phase)
    directory = run_directory(request.run)
    submit(directory, request.command)
    Inbox(directory).done(RequestId(request.request_id))
    at = (timezone.now() - timedelta(days=days_ago)).timestamp()
    os.utime(directory.requests / "done" / request.request_id, (at, at))
    return request


def is_marked(request: Request) -> bool:
    return (run_directory(request.run).requests / "done" / request.request_id).exists()
