"""A long-lived server tells the truth about code that has changed since it started."""

import ast
import os
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from ftdash.incidents.causes import Cause, advice_on
from ftdash.jobs import fresh_code
from ftdash.jobs.models import Pipeline, Request, Run
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore
from ftdash.projection.projector import Projector
from ftdash.projection.run_fold import RunFold
from ftdash.supervision.launcher import _spec
from ftdash.tasks import begin_worker
from ftdash.ui.templatetags.formats import step_address
from pipelines.domain.errors import BrokenCode, FailureKind, Rejected
from pipelines.domain.events import Envelope, LedgerBegun
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import Attempt, RunId, Uid
from pipelines.flows import page_view_count
from pipelines.flows.finding import VARIABLE, find_flow
from pipelines.points import code_process
from pipelines.points.code_process import MayRestore
from pipelines.points.verdict import Check, Finding, Outcome, Verdict
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.planted_variables import OWN, plant, unexpected
from tests.unit.points.stored_views import FLOW, publish_views, write_events
from tests.web.journals import Story, new_run
from tests.web.page_words import words_in

pytestmark = pytest.mark.django_db

Edit = Callable[[str, str], None]


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Replaces text in the file that declares the flow, which this process has already imported."""
    source = Path(page_view_count.__file__).read_text()
    file = tmp_path / "code" / "counted_views.py"
    file.parent.mkdir()
    file.write_text(source)
    monkeypatch.setenv(VARIABLE, f"{FLOW}=counted_views:FLOW")
    monkeypatch.setenv("PYTHONPATH", str(file.parent))
    monkeypatch.syspath_prepend(str(file.parent))
    monkeypatch.delitem(sys.modules, "counted_views", raising=False)
    find_flow(FLOW)

    def change(old: str, new: str) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


@pytest.fixture
def stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process counts as a server."""
    monkeypatch.setattr(fresh_code, "_staying", [])
    begin_worker()


@pytest.fixture
def path(site: Path, tmp_path: Path) -> str:
    """The path of a point of a pipeline that has ended."""
    data = write_events(tmp_path / "data")
    story = Story(new_run("views", settings={})).started()
    point = str(site / "views" / "savepoints" / "savepoint-views-1-7")
    story.completed(path=point)
    story.ended()
    Projector().run_once()
    Pipeline.objects.update(flow=FLOW, parameters={"data": str(data)})
    publish_views(FileSystemCheckpointStore([str(site)]), point, data)
    return point


@pytest.mark.usefixtures("stays")
def test_the_preflight_of_a_running_server_sees_a_renamed_operator(
    admin: Client, edit: Edit, path: str
) -> None:
    address, asked = "/pipelines/views/restore/verdict/", {"path": path, "parallelism": "2"}

    before = words_in(admin.get(address, asked).content.decode())
    edit('uid="views"', 'uid="views-per-app"')
    after = words_in(admin.get(address, asked).content.decode())

    assert "It can be restored." in before
    assert "The code that would run is counted_views in" in before
    assert digest_in(before) != digest_in(after)
    assert "It cannot be restored." in after
    assert "It holds state of the operator 'views'" in after
    with pytest.raises(Rejected, match="state of the operator 'views'"):
        point_services.restore(Restore(pipeline="views", path=path), requester="ann", reason="x")


def test_a_renamed_operator_is_mapped_by_hand_on_the_restore_page(
    admin: Client, edit: Edit, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit('uid="views"', 'uid="views-per-app"')
    monkeypatch.setattr(fresh_code, "_staying", [True])
    address = "/pipelines/views/restore/"
    fields = {"path": path, "parallelism": "2", "reason": "renamed", "confirmation": "views"}

    refused = admin.get(f"{address}verdict/", {"path": path, "parallelism": "2"}).content.decode()
    proposed = admin.get(next_step(FailureKind.STATE_UNMATCHED)).content.decode()
    answer = admin.post(address, {**fields, "renamed": "views: views-per-app"})

    assert "'views' looks like 'views-per-app': same state" in words_in(refused)
    assert f'href="{address}?path={path}&amp;renamed=views%3A%20views-per-app"' in refused
    assert "views: views-per-app</textarea>" in proposed
    assert "It maps 'views' to 'views-per-app': same state, same schema." in words_in(proposed)
    assert "It can be restored." in words_in(proposed)
    assert answer.status_code == 302
    run, request = Run.objects.get(number=2), Request.objects.get(kind="RESTORE")
    assert run.renamed_uids == _spec(run).renamed_uids == {"views": "views-per-app"}
    assert request.command.parameters["map views"] == "views-per-app"


def test_a_start_that_leaves_state_behind_is_confirmed_on_the_command_line(
    edit: Edit, path: str, tmp_path: Path
) -> None:
    words = ["pipeline", "submit", "views", f"--flow={FLOW}"]
    words += [f"--parameter=data={tmp_path / 'data'}", "--request-id=start-2"]

    with pytest.raises(CommandError, match=f"restore {path} to continue, or confirm"):
        call_command(*words)
    assert not Run.objects.filter(number=2).exists()
    call_command(*words, "--yes", stdout=StringIO())
    call_command(*words, stdout=StringIO())  # the same request again starts nothing

    assert Run.objects.filter(pipeline__name="views").count() == 2


@pytest.mark.usefixtures("edit", "path")
def test_a_start_that_leaves_state_behind_is_confirmed_in_the_api(
    admin: Client, tmp_path: Path
) -> None:
    body = {"name": "views", "flow": FLOW, "reason": "again"}
    body |= {"parameters": {"data": str(tmp_path / "data")}}

    answers = [
        admin.post("/api/pipelines", each, content_type="application/json")
        for each in (body, body | {"confirm": "view"}, body | {"confirm": "views"})
    ]

    assert [answer.status_code for answer in answers] == [422, 422, 202]
    assert "confirm the start with the name 'views'" in answers[0].content.decode()


@pytest.mark.usefixtures("edit")
def test_a_gap_accepted_on_the_restore_page_is_then_shown_as_lost(
    admin: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = Gap(source=Uid("events"), split="s", first=5, last=9, records=5)
    reaching = ["/other"]

    def answered(about: MayRestore, kind: type) -> Verdict:
        accepted = (gap,) if gap.text in about.question.accepted_gaps else ()
        refused = () if accepted else (Finding(Check.SOURCES, Outcome.REFUSED, "5 to 9 are gone."),)
        gaps = () if accepted else (gap,)
        return Verdict(
            path=path, findings=refused, gaps=gaps, accepted_gaps=accepted, reaching=reaching[-1]
        )

    monkeypatch.setattr(point_services, "answer", answered)
    address = "/pipelines/views/restore/"
    fields = {"path": path, "parallelism": "2", "reason": "agreed", "confirmation": "views"}

    refused = admin.get(f"{address}verdict/", {"path": path, "parallelism": "2"}).content.decode()
    form = admin.get(address, {"path": path, "accepted_gaps": gap.text}).content.decode()
    reaching.append("")
    proposed = admin.get(next_step(FailureKind.INPUT_LOST)).content.decode()
    not_taken = admin.post(address, fields)
    answer = admin.post(address, {**fields, "accepted_gaps": gap.text})

    assert f'href="{address}?path={path}&amp;accepted_gaps=events%20s%205-9"' in refused
    assert f'href="{address}?path=/other"' in refused
    assert "Accept the loss of up to 5 records of 'events', split s" in words_in(refused)
    assert "It can be restored, and loses input." in words_in(form)
    assert "events s 5-9</textarea>" in proposed
    assert f"If you confirm it, you accept the loss of {gap.lost}." in words_in(proposed)
    assert not_taken.status_code != 302
    assert answer.status_code == 302
    run, request = Run.objects.get(number=2), Request.objects.get(kind="RESTORE")
    assert run.accepted_gaps == _spec(run).accepted_gaps == [gap.text]
    assert request.command.parameters["accept-gap"] == gap.text

    fold = RunFold(run)
    begun = LedgerBegun(lineage=[], start=None, gaps=[gap])
    fold.on(
        Envelope(sequence=1, at_ms=1, run_id=RunId(run.run_id), attempt=Attempt(1), event=begun)
    )
    fold.save()
    for page in ("/pipelines/views/", "/pipelines/views/guarantee/"):
        assert gap.lost in words_in(admin.get(page).content.decode()), page


@pytest.mark.usefixtures("stays")
def test_the_form_has_the_current_parameters_of_the_code(admin: Client, edit: Edit) -> None:
    edit('Parameter("repeat"', 'Parameter("speed", "1", "of reading"),\n        Parameter("repeat"')

    form = admin.get(reverse("submit"), {"flow": FLOW}).content.decode()

    assert "parameter-speed" in form


@pytest.mark.usefixtures("stays")
def test_code_that_breaks_or_exits_is_reported_and_does_not_harm_the_server(
    edit: Edit, path: str
) -> None:
    asked = Restore(pipeline="views", path=path)

    edit("    env = Environment()", "    1 / 0")
    broken = point_services.preflight(asked)
    edit("import pyarrow as pa", "import os\nimport pyarrow as pa\nos._exit(7)")
    with pytest.raises(Rejected, match="ended with status 7 and no answer"):
        point_services.preflight(asked)

    assert "ZeroDivisionError" in broken.refusals[0]


def test_broken_code_is_refused_with_its_traceback_and_code_may_print(edit: Edit) -> None:
    asked = code_process.ItsParameters(flow=FLOW, jobs_root="/nowhere")
    edit("KEYS = COLUMNS[:2]", "KEYS = COLUMNS[:2]\nprint('{}')")

    names = [each.name for each in afresh(asked)]
    edit("print('{}')", "COLUMNS.gone()")
    with pytest.raises(BrokenCode) as refused:
        afresh(asked)

    assert names == ["data", "key", "repeat"]
    assert "COLUMNS.gone()" in refused.value.traceback


def test_hanging_code_is_ended_after_the_timeout(
    edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("import pyarrow as pa", "import pyarrow as pa\nimport threading\nthreading.Event().wait()")
    monkeypatch.setattr(code_process, "TIMEOUT_S", 5.0)

    with pytest.raises(Rejected, match="did not answer within 5 s"):
        afresh(code_process.ItsParameters(flow=FLOW, jobs_root="/nowhere"))


@pytest.mark.usefixtures("stays")
def test_code_that_is_inspected_reads_allowed_variables_only(
    edit: Edit, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    plant(monkeypatch, settings)
    told = 'raise LookupError(open("/proc/self/environ").read().split(chr(0)))'
    edit("import pyarrow as pa", f"{told}\nimport pyarrow as pa")

    with pytest.raises(BrokenCode, match="LookupError") as refused:
        fresh_code.answer(
            code_process.ItsParameters(flow=FLOW, jobs_root="/nowhere"),
            list[code_process.Parameter],
        )

    told_variables = refused.value.traceback.partition("LookupError: ")[2].strip()
    variables = ast.literal_eval(told_variables)
    assert unexpected({each.partition("=")[0] for each in variables if each}) == set()
    assert f"{OWN}=an author's own" in variables


def afresh(asked: code_process.ItsParameters) -> list:
    return code_process.answer_afresh(asked, list[code_process.Parameter], Path(os.getcwd()))


def next_step(kind: FailureKind) -> str:
    """Returns the target of the first button of such an incident."""
    return step_address("views", advice_on(Cause(kind.value), has_failed=True).steps[0])


def digest_in(words: str) -> str:
    """Returns the digest of the code that a verdict names."""
    [digest] = re.findall(r"sha256 ([0-9a-f]+)", words)
    return digest
