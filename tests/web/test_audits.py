"""Audits from the page: one at a time, carried out by a process, stored in a row."""

import ast
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db.models import F
from django.utils import timezone

from ftdash import tasks
from ftdash.audits import services as audits
from ftdash.checkpoints.models import Audit
from ftdash.checkpoints.queries.guarantee import SILENT_AFTER, AuditState, AuditView
from ftdash.checkpoints.queries.guarantee import audits as audit_views
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Pipeline, Run
from ftdash.supervision.launcher import _spec
from pipelines.audit import audit_process, auditor
from pipelines.domain.errors import Rejected
from pipelines.domain.run import RunDirectory
from pipelines.flows.finding import VARIABLE
from tests.planted_variables import OWN, plant, unexpected
from tests.web.audit_reports import NOT_PROVEN, PROVEN, report_of
from tests.web.journals import new_run

pytestmark = pytest.mark.usefixtures("site")
NAME = "flights"


@pytest.fixture
def run() -> Run:
    run = new_run(NAME)
    run_directory(run).path.mkdir(parents=True, exist_ok=True)
    return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Returns the commands of the processes that a worker would have started."""
    commands: list[list[str]] = []

    class Started:
        pid = 4711

        def __init__(self, command: list[str], **_: object) -> None:
            commands.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(audits.subprocess, "Popen", Started)
    return commands


def test_a_request_during_an_audit_returns_the_audit_under_way(run: Run) -> None:
    first = audits.ask(NAME, "ada")

    assert audits.ask(NAME, "grace") == first
    assert newest().state is AuditState.WAITING
    assert newest().requester == "ada"


def test_a_pipeline_without_a_run_has_nothing_to_audit() -> None:
    Pipeline.objects.create(name="idle", flow="flight_delays", created_at=timezone.now())

    with pytest.raises(Rejected, match="idle has no run yet"):
        audits.ask("idle", "ada")


def test_a_worker_starts_the_process_of_an_audit_once(run: Run, started: list[list[str]]) -> None:
    key = audits.ask(NAME, "ada")

    tasks.start_audit(key)
    tasks.start_audit(key)

    assert [command[1:] for command in started] == [
        ["-m", "ftdash", "carry_out", "audit", str(key)]
    ]
    assert newest().state is AuditState.RUNNING


def test_the_next_round_starts_an_audit_that_no_worker_heard_of(
    run: Run, started: list[list[str]]
) -> None:
    audits.ask(NAME, "ada")
    audits.start_forgotten()
    just_asked = list(started)
    Audit.objects.update(created_at=timezone.now() - 2 * audits.FORGOTTEN_AFTER)

    audits.start_forgotten()

    assert (len(just_asked), len(started)) == (0, 1)


def test_an_audit_that_cannot_start_holds_up_no_other(started: list[list[str]]) -> None:
    for name in ("without files", "with files"):
        run = new_run(name)
        audits.ask(name, "ada")
    run_directory(run).path.mkdir(parents=True)
    Audit.objects.update(created_at=timezone.now() - 2 * audits.FORGOTTEN_AFTER)

    audits.start_forgotten()

    (command,) = started
    assert command[-1] == str(Audit.objects.get(run=run).pk)


def test_an_audit_reports_its_steps_and_stores_its_report(
    run: Run, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def audit(run: RunDirectory, tell: auditor.Tell, *_: object) -> object:
        tell("reading the ledger")
        steps.append((newest().step, newest().state))
        return report_of(PROVEN)

    monkeypatch.setattr(audit_process, "audit_afresh", audit)
    before = Pipeline.objects.get(name=NAME).version

    carry_out()

    found = newest()
    assert steps == [("reading the ledger", AuditState.RUNNING)]
    assert found.state is AuditState.AS_RECORDED
    assert found.report is not None
    assert found.report["sinks"][0]["proven_checkpoint_id"] == 7
    assert any("proven up to checkpoint 7" in sentence for sentence in found.sentences)
    assert Pipeline.objects.get(name=NAME).version > before + 2


def test_a_difference_ends_the_audit_as_different(
    run: Run, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_process, "audit_afresh", lambda *_: report_of(NOT_PROVEN))

    carry_out()

    assert newest().state is AuditState.DIFFERENT


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (Rejected("The table delays cannot be read."), "The table delays cannot be read."),
        (ZeroDivisionError(), "It failed with ZeroDivisionError; see audit.log of the run."),
    ],
)
def test_a_failed_audit_says_why(
    run: Run,
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    said: str,
) -> None:
    def refuse(*_: object) -> object:
        raise problem

    monkeypatch.setattr(audit_process, "audit_afresh", refuse)

    if isinstance(problem, Rejected):
        carry_out()
    else:
        with pytest.raises(ZeroDivisionError):
            carry_out()

    assert (newest().state, newest().problem) == (AuditState.IMPOSSIBLE, said)


@pytest.mark.slow
def test_an_audit_runs_the_authors_code_with_allowed_variables_only(
    site: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    plant(monkeypatch, settings)
    monkeypatch.setenv(VARIABLE, "telling=telling:FLOW")
    monkeypatch.setenv("PYTHONPATH", str(site))
    (site / "telling.py").write_text(
        "import os\nprint('an author prints')\nraise LookupError(sorted(os.environ))\n"
    )
    Pipeline.objects.create(name="telling", flow="telling", created_at=timezone.now())
    run = new_run("telling", settings={}, parameters={})
    directory = run_directory(run)
    directory.path.mkdir(parents=True)
    directory.spec_file.write_bytes(msgspec.json.encode(_spec(run)))
    directory.journal_file.touch()

    key = audits.ask("telling", "ada")
    audits.carry_out(key)

    problem = Audit.objects.get(pk=key).problem
    names = set(ast.literal_eval(problem.partition("LookupError: ")[2].partition("]")[0] + "]"))
    assert (unexpected(names), OWN in names) == (set(), True)


def test_a_silent_audit_counts_as_interrupted_and_another_may_start(
    run: Run, started: list[list[str]]
) -> None:
    first = audits.ask(NAME, "ada")
    tasks.start_audit(first)
    Audit.objects.update(moved_at=F("moved_at") - SILENT_AFTER - timedelta(seconds=1))
    silent = newest().state

    second = audits.ask(NAME, "ada")

    assert silent is AuditState.INTERRUPTED
    assert second != first
    assert audit_views(NAME, 2)[1].problem == audits.INTERRUPTED


def test_an_interrupted_audit_that_reports_again_changes_nothing(
    run: Run, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_process, "audit_afresh", lambda *_: report_of(PROVEN))
    first = audits.ask(NAME, "ada")
    tasks.start_audit(first)
    Audit.objects.update(moved_at=F("moved_at") - SILENT_AFTER - timedelta(seconds=1))
    audits.ask(NAME, "ada")

    audits.carry_out(first)

    assert audit_views(NAME, 2)[1].state is AuditState.IMPOSSIBLE


def test_a_long_audit_gives_signs_of_life(
    run: Run, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, transactional_db: Any
) -> None:
    monkeypatch.setattr(audits, "SIGN_OF_LIFE_S", 0.01)
    key = audits.ask(NAME, "ada")
    tasks.start_audit(key)
    old = timezone.now() - timedelta(hours=1)
    Audit.objects.update(moved_at=old)
    deadline = timezone.now() + timedelta(seconds=20)

    with audits.signs_of_life(key):
        while Audit.objects.get(pk=key).moved_at == old:
            assert timezone.now() < deadline


def carry_out() -> None:
    key = audits.ask(NAME, "ada")
    tasks.start_audit(key)
    audits.carry_out(key)


def newest() -> AuditView:
    return audit_views(NAME, 1)[0]
