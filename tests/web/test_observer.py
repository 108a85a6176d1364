"""`demo --check` counts a newer attempt with a completed checkpoint as a recovery."""

import pytest

from ftdash.embedded.checked import Observer
from ftdash.embedded.demo import NAME
from ftdash.jobs.answers import RunView
from ftdash.projection.projector import Projector
from pipelines.domain.errors import Rejected
from pipelines.domain.events import JobStatusChanged
from pipelines.domain.ids import Attempt
from pipelines.domain.status import JobStatus
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.usefixtures("site", "patient")


def test_a_recovery_is_over_with_the_first_checkpoint_after_it() -> None:
    story = Story(new_run(NAME)).started().completed()
    before = seen()
    story.slot_killed()
    assert not has_recovered(before)

    story.wait(1_000).completed()

    assert has_recovered(before)


def test_a_newer_attempt_without_a_known_recovery_has_not_recovered() -> None:
    story = Story(new_run(NAME)).started().completed()
    before = seen()

    story.attempt = Attempt(2)
    story.tell(JobStatusChanged(status=JobStatus.RUNNING))

    assert not has_recovered(before)


def seen() -> RunView:
    Projector().run_once()
    return Observer(NAME, lambda: None).run()


def has_recovered(before: RunView) -> bool:
    Projector().run_once()
    try:
        Observer(NAME, lambda: None).wait_recovered(before, within_s=0.0)
    except Rejected:
        return False
    return True
