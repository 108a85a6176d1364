"""The undo of a start over: offered while it loses nothing, then refused with one sentence."""

import pytest
from django.test import Client
from django.urls import reverse

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import DesiredState, Pipeline, Request, RequestPhase, Run
from ftdash.points.queries import newest_line
from ftdash.projection.projector import Projector
from ftdash.requests.services import ask
from ftdash.runs.queries.pipelines import pipeline_page
from ftdash.supervision.drivers import deliver
from ftdash.supervision.launcher import _spec
from pipelines.bus.inbox import Inbox
from pipelines.domain.commands import RequestKind, UndoStart
from pipelines.domain.errors import Rejected
from pipelines.domain.events import LedgerBegun, StartUndone
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.status import JobStatus
from tests.web.journals import Story, new_run
from tests.web.lineages import forked, gave
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site")

UNDO = reverse("act", args=["flights", "undo"])
PAGE = reverse("pipeline", args=["flights"])
COMMITTED = (
    "Run {} of flights has completed a checkpoint and committed output, so its start can no longer"
    " be undone; restore a point of an earlier run to go back."
)


def test_the_page_offers_the_undo_while_the_new_run_has_committed_nothing(admin: Client) -> None:
    _, new = started_over()

    page = words_in(admin.get(PAGE).content.decode())
    form = words_in(admin.get(UNDO).content.decode())
    admin.post(UNDO, {"reason": "it was a mistake"})

    assert "Undo start" in page
    assert "The new run ends; it has committed nothing." in form
    assert "It is 3 rows of delays, committed from " in form
    request = Request.objects.get()
    assert (request.kind, request.run, request.requester) == (RequestKind.UNDO_START, new, "ada")
    deliver(request.pk)
    [command] = Inbox(run_directory(new)).pending()
    assert isinstance(command, UndoStart)
    assert Run.objects.get(pk=new.pk).desired == DesiredState.RUNNING, "a successor goes on with it"


def test_a_start_cannot_be_undone_after_the_first_completed_checkpoint(admin: Client) -> None:
    _, new = started_over()
    fold(Story(new).completed())

    page = words_in(admin.get(PAGE).content.decode())
    answer = admin.post(UNDO, {"reason": "too late"})

    assert "Undo start" not in page
    assert answer.status_code == 422
    assert COMMITTED.format(2) in words_in(answer.content.decode())
    assert not Request.objects.exists()


def test_a_separate_run_undoes_the_start_of_a_run_that_has_ended(admin: Client) -> None:
    old, new = started_over()
    fold(Story(new).ended(JobStatus.FAILED, "It failed at once."))

    admin.post(UNDO, {"reason": "back to where we were"})

    request, third = Request.objects.get(), Run.objects.get(number=3)
    assert (request.kind, request.run) == (RequestKind.UNDO_START, third)
    spec = _spec(third)
    assert (spec.puts_back, spec.follows, spec.started_by) == (True, new.run_id, "ada")
    assert spec.restore_from is None
    put_back(old, third)
    request.refresh_from_db()
    assert request.phase == RequestPhase.SUCCEEDED
    assert request.message == "The output is back, says the run."


@pytest.mark.parametrize("by", ["its driver", "a run of its own"])
def test_an_undo_puts_the_points_of_the_previous_run_back_on_the_line(by: str) -> None:
    old, new = started_over()
    assert list(newest_line(Pipeline.objects.get())) == [new.run_id]

    if by == "its driver":
        put_back(old, new)
    else:
        fold(Story(new).ended(JobStatus.FAILED))
        put_back(old, new_run("flights", puts_back=True))

    assert list(newest_line(Pipeline.objects.get())) == [old.run_id]
    page = pipeline_page("flights")
    assert page is not None
    offer = page.actions[RequestKind.UNDO_START]
    assert (offer.is_possible, offer.why_not.endswith("is undone already.")) == (False, True)
    assert page.actions[RequestKind.RESTORE].is_possible


def test_a_run_that_did_not_start_over_has_no_start_to_undo() -> None:
    with_a_point = fold(Story(new_run()).started().completed().ended())

    assert why_not() == COMMITTED.format(1)
    fold(Story(forked(with_a_point.run, 1)).started().ended())
    assert why_not() == "The newest run of flights did not start over: no start can be undone."


def test_the_start_of_a_first_run_cannot_be_undone() -> None:
    fold(Story(new_run()).started())

    assert why_not() == "No earlier run of flights has committed output: nothing can be put back."


def test_an_undo_is_refused_while_the_run_is_being_stopped() -> None:
    _, new = started_over()
    Run.objects.filter(pk=new.pk).update(desired=DesiredState.STOPPED)

    assert why_not() == "flights is being stopped; undo the start of the run when it has ended."


def started_over() -> tuple[Run, Run]:
    """Makes a run that has committed, and another that runs from the beginning."""
    old = new_run()
    story = Story(old).started().completed(path="/points/1")
    fold(story.tell(gave(old, 1)).ended())
    new = new_run()
    fold(Story(new).started())
    return old, new


def put_back(old: Run, by: Run) -> None:
    line = [(RunId(old.run_id), CheckpointId(1))]
    told = (LedgerBegun(lineage=line, start=None), StartUndone(lineage=line))
    said = "The output is back, says the run."
    fold(Story(by).tell(*told).ended(JobStatus.CANCELED, said))


def why_not() -> str:
    with pytest.raises(Rejected) as refusal:
        ask("flights", UndoStart(), who="ada", why="try")
    return str(refusal.value)


def fold(story: Story) -> Story:
    Projector().run_once()
    return story
