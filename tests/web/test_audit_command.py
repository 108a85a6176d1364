"""`manage.py audit`: its output and its exit status."""

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Run
from pipelines.audit import auditor
from pipelines.audit.report import AuditReport
from pipelines.domain.errors import Rejected
from pipelines.domain.run import RunDirectory
from tests.web.audit_reports import NOT_PROVEN, PROVEN, report_of
from tests.web.journals import new_run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def installation(settings, tmp_path: Path) -> None:
    settings.JOBS_ROOT = tmp_path


@pytest.fixture
def run() -> Run:
    return new_run()


def test_the_command_prints_up_to_which_checkpoint_the_newest_run_is_proven(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited = answering(monkeypatch, report_of(PROVEN))

    assert "proven up to checkpoint 7 of run-1, 70 rows, digested." in printed(run.pipeline.name)
    assert audited == [run_directory(run).path]


def test_the_json_option_prints_the_report_for_scripts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, report_of(PROVEN))

    answer = json.loads(printed(run.pipeline.name, "--json"))

    assert answer["is_as_recorded"] is True
    assert answer["sinks"][0]["proven_checkpoint_id"] == 7


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_the_command_prints_a_difference_and_exits_with_status_1(
    run: Run, option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, report_of(NOT_PROVEN))
    out = StringIO()

    with pytest.raises(CommandError) as refusal:
        call_command("audit", run.pipeline.name, *option, stdout=out)

    assert refusal.value.returncode == 1
    for what in ("but not the same", "00000000000000aa", "00000000000000bb", "part-7.parquet"):
        assert what in out.getvalue()


def test_an_impossible_audit_exits_with_one_sentence_and_status_2(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: RunDirectory) -> AuditReport:
        raise Rejected(f"{directory.spec_file.name} cannot be read.")

    monkeypatch.setattr(auditor, "audit", refuse)

    for arguments, sentence in [
        ([run.pipeline.name], "run.json cannot be read."),
        (["nothing"], "There is no run of a pipeline 'nothing'; see `manage.py pipeline list`."),
        ([run.pipeline.name, "--run", "run-x"], "There is no run run-x of pipeline"),
    ]:
        with pytest.raises(CommandError, match=sentence) as refusal:
            printed(*arguments)
        assert refusal.value.returncode == 2


def answering(monkeypatch: pytest.MonkeyPatch, answer: AuditReport) -> list[Path]:
    """Returns the list of runs that were audited."""
    audited: list[Path] = []

    def audit(directory: RunDirectory) -> AuditReport:
        audited.append(directory.path)
        return answer

    monkeypatch.setattr(auditor, "audit", audit)
    return audited


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("audit", *arguments, stdout=out)
    return out.getvalue()
