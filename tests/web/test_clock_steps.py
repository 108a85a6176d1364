"""The machine's clock jumps an hour forward or back: pages and supervision stay sensible."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from ftdash.incidents.causes import Cause
from ftdash.incidents.models import Incident
from ftdash.jobs.directories import run_directory
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection.projector import Projector, _clock_behind_s
from ftdash.runs.fleet_answers import Concern
from ftdash.runs.queries import freshness
from ftdash.runs.queries.fleet import fleet
from ftdash.runs.queries.freshness import ShownState
from ftdash.supervision import drivers as supervision
from ftdash.ui.templatetags import formats as tags
from pipelines.bus.journal import read_journal
from tests.web.journals import Story, StoryClock, new_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("site")]
HOUR = timedelta(hours=1)


def test_a_sign_of_life_from_the_future_does_not_count() -> None:
    run = new_run()
    run.last_event_at = timezone.now()
    beats(projector_at=timezone.now() + HOUR)

    state, sentence = freshness.shown_state(run, freshness.observe())

    assert state is ShownState.UNKNOWN
    assert "-" not in sentence.replace("projector", "")


def test_a_driver_last_heard_before_the_clock_was_set_back_counts_as_silent() -> None:
    run = new_run()
    run.status, run.last_event_at = "RUNNING", timezone.now() + HOUR
    beats(projector_at=timezone.now())

    state, sentence = freshness.shown_state(run, freshness.observe())

    assert state is ShownState.STALE
    assert "-" not in sentence


def test_a_driver_whose_clock_was_set_back_is_reported_as_clock_off() -> None:
    story = Story(new_run(), StoryClock()).started()
    story.clock.now_ms -= round(HOUR / timedelta(milliseconds=1))
    story.sampled().written_at(round(1000 * time.time()))
    Projector().run_once()

    (found,) = fleet().pipelines
    (incident,) = Incident.objects.all()

    assert (found.state, found.concern) == (ShownState.STALE, Concern.CLOCK_OFF)
    assert "The clock of the driver's machine is 1 h 00 min behind this one's" in found.attention
    assert incident.cause == Cause.CLOCK_OFF


def test_a_journal_read_late_does_not_count_as_a_clock_difference() -> None:
    """The first part of the journal is an hour older than its end; only the end shows the clock."""
    run = new_run()
    clock = StoryClock()
    clock.now_ms -= round(HOUR / timedelta(milliseconds=1))
    story = Story(run, clock).started()
    envelopes, offset = read_journal(run_directory(run).journal_file, 0)
    story.wait(round(HOUR / timedelta(milliseconds=1))).sampled()

    assert _clock_behind_s(run, envelopes[-1], offset) == 0.0


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_clock_step_does_not_delay_the_replacement_of_a_dead_driver(step: timedelta) -> None:
    run = new_run()
    now = timezone.now()
    run.driver_started_at, run.driver_starts_in_row = now - step, 1

    start_at = supervision._next_start_at(run, now)

    assert start_at - now <= timedelta(seconds=supervision.settings.DRIVER_START_BACKOFF_MAX_S)


def test_no_age_on_a_page_is_negative() -> None:
    future = timezone.now() + HOUR

    assert tags.age_ms(future) == 0
    assert 'data-age-ms="0"' in tags.clock(future)
    assert ">0 s<" in tags.clock(future)


def beats(projector_at: object) -> None:
    for name in (HeartbeatName.PROJECTOR, HeartbeatName.RECONCILE):
        Heartbeat.objects.update_or_create(name=name, defaults={"at": projector_at, "pid": 1})
