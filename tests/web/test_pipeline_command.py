"""`manage.py pipeline`: the same services and queries as the pages, for terminals and scripts."""

import getpass
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from ftdash.command_line.management.commands import pipeline
from ftdash.jobs.models import PointLabel, Request, RequestPhase, Run
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore
from ftdash.projection.projector import Projector
from ftdash.requests import services
from pipelines.domain.commands import RequestKind
from pipelines.domain.errors import Rejected
from pipelines.domain.guarantees import EndToEnd
from pipelines.domain.ids import Attempt, CheckpointId, RequestId
from pipelines.domain.status import CheckpointKind, ClaimMode
from pipelines.points.verdict import Check, Finding, Outcome, Verdict
from tests.web.journals import Story, new_run

GUARANTEED = EndToEnd("at-least-once", "it is a test")

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def installation(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.JOBS_ROOT = tmp_path
    monkeypatch.setattr(services, "check_startable", lambda *_: GUARANTEED)
    monkeypatch.setattr(services, "check_sources", lambda *_: None)
    monkeypatch.setattr(services, "output_notes", lambda *_: [])


def test_submit_starts_a_run_in_the_name_of_the_person() -> None:
    (request,) = answer(
        "submit",
        "flight_delays",
        "--parallelism",
        "2",
        "--parameter",
        "speed=24",
        "--forever",
        "--set",
        "execution.checkpointing.interval=1 s",
        "--reason",
        "night run",
        "--json",
    )

    run = Run.objects.get()
    assert (run.pipeline.flow, run.parallelism) == ("flight_delays", 2)
    assert run.parameters == {"speed": "24", "forever": "true"}
    assert run.settings == {"execution.checkpointing.interval": "1 s"}
    assert (request["requester"], request["reason"]) == (getpass.getuser(), "night run")
    assert (request["kind"], request["phase"]) == ("SUBMIT", "PENDING")
    assert request["message"] == "From end to end at-least-once, because it is a test."


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("savepoint", RequestKind.SAVEPOINT),
        ("stop", RequestKind.STOP_WITH_SAVEPOINT),
        ("cancel", RequestKind.CANCEL),
    ],
)
def test_an_action_becomes_a_request(action: str, kind: RequestKind) -> None:
    running()

    answer(action, "flights", "--json")

    request = Request.objects.get()
    assert (request.kind, request.reason) == (kind, "asked on the command line")


def test_retry_ends_a_wait_for_a_restart_and_is_refused_otherwise() -> None:
    run = running()
    with pytest.raises(CommandError, match="does not wait for a restart: it is RUNNING"):
        call_command("pipeline", "retry", "flights")
    story = Story(run)
    story.attempt = Attempt(1)
    story.waits_for_restart()
    Projector().run_once()

    (asked,) = answer("retry", "flights", "--reason", "it is up again", "--json")

    request = Request.objects.get()
    assert (request.kind, request.run_id) == (RequestKind.RETRY_NOW, run.pk)
    assert (request.reason, request.phase) == ("it is up again", RequestPhase.PENDING)
    assert (asked["label"], asked["requester"]) == ("retry now", getpass.getuser())


@pytest.mark.parametrize("action", ["savepoint", "stop", "cancel --with-savepoint"])
def test_a_savepoint_can_be_labelled_when_it_is_requested(action: str) -> None:
    running()

    answer(*action.split(), "flights", "--label", "before lunch", "--json")

    assert PointLabel.objects.get().request_id == Request.objects.get().request_id
    assert PointLabel.objects.get().label == "before lunch"


def test_an_existing_savepoint_can_be_labelled() -> None:
    story = Story(running())
    story.next_checkpoint = CheckpointId(2)
    story.completed(CheckpointKind.SAVEPOINT, path="/jobs/savepoint-1")
    Projector().run_once()

    answer("label", "flights", "/jobs/savepoint-1", "before lunch", "--json")

    (listed,) = answer("savepoints", "flights", "--json")
    assert (listed["label"], listed["is_present"]) == ("before lunch", False)
    assert PointLabel.objects.get().path == "/jobs/savepoint-1"
    assert Request.objects.get().kind == RequestKind.LABEL


def test_list_and_status_read_what_the_pages_read() -> None:
    run = running()

    (summary,) = answer("list", "--json")
    status = answer("status", "flights", "--json")

    assert (summary["name"], summary["state"]) == ("flights", "RUNNING")
    assert status["run_id"] == run.run_id
    assert [point["checkpoint_id"] for point in status["recovery_points"]] == [1]
    assert status["requests"] == []


def test_lists_are_printed_as_tables_by_default() -> None:
    running()

    title, heads, line = [row for row in printed("list") if row.strip(" ─")]

    assert title.split() == ["Pipelines"]
    assert heads.split()[:3] == ["pipeline", "state", "run"]
    assert line.split()[:3] == ["flights", "RUNNING", "1"]


def test_the_status_shows_recovery_points_and_requests() -> None:
    running()
    call_command(
        "pipeline", "savepoint", "flights", "--reason", "[before] lunch", stdout=StringIO()
    )

    text = "\n".join(printed("status", "flights"))

    assert "checkpoint 1" in text
    assert re.search(r"\bsavepoint .* s ago", text)


def test_an_empty_list_is_printed_as_a_sentence() -> None:
    running()

    assert printed("savepoints", "flights") == ["flights has no savepoint."]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["status", "nothing"], "There is no pipeline 'nothing'"),
        (["cancel", "nothing"], "There is no pipeline 'nothing'; none was submitted yet."),
        (["restore", "nothing", "/x"], "There is no pipeline 'nothing'"),
        (["replay-quarantine", "nothing"], "There is no pipeline 'nothing'"),
        (["savepoints", "nothing"], "There is no pipeline 'nothing'"),
        (["lineage", "nothing"], "There is no pipeline 'nothing'"),
        (["preflight", "nothing", "/x"], "There is no pipeline 'nothing'"),
        (["submit", "x", "--parameter", "speed"], "--parameter 'speed' has no '='"),
    ],
)
def test_a_refusal_is_one_sentence_and_status_2(arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError) as refusal:
        call_command("pipeline", *arguments)

    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.returncode == 2


@pytest.mark.parametrize("phase", [RequestPhase.SUCCEEDED, RequestPhase.FAILED])
def test_wait_ends_with_the_request_and_exits_with_1_on_failure(
    monkeypatch: pytest.MonkeyPatch, phase: RequestPhase
) -> None:
    running()
    rounds = []

    def end_the_request(seconds: float) -> None:
        rounds.append(seconds)
        Request.objects.update(phase=phase, message="The disk is full.")

    monkeypatch.setattr(pipeline.time, "sleep", end_the_request)

    if phase == RequestPhase.FAILED:
        with pytest.raises(CommandError, match=r"The disk is full\.") as failure:
            answer("savepoint", "flights", "--wait", "--json")
        assert failure.value.returncode == 1
    else:
        (request,) = answer("savepoint", "flights", "--wait", "--json")
        assert request["phase"] == "SUCCEEDED"
    assert len(rounds) == 1


@pytest.mark.parametrize(
    ("arguments", "kind", "given"),
    [
        (["savepoint", "--type", "native"], RequestKind.SAVEPOINT, "NATIVE"),
        (["stop", "--type", "native"], RequestKind.STOP_WITH_SAVEPOINT, "NATIVE"),
        (["cancel", "-s"], RequestKind.CANCEL_WITH_SAVEPOINT, "CANONICAL"),
    ],
)
def test_savepoint_commands_request_the_given_kind_and_format(
    arguments: list[str], kind: RequestKind, given: str
) -> None:
    running()
    action, *options = arguments

    answer(action, "flights", *options, "--request-id", "mine", "--json")

    request = Request.objects.get()
    assert (request.request_id, request.kind, request.command.parameters) == (
        "mine",
        kind,
        {"type": given},
    )


def test_set_requests_the_given_settings() -> None:
    running()

    answer("set", "flights", "execution.checkpointing.timeout=1 min", "--reason", "slow", "--json")

    request = Request.objects.get()
    assert (request.kind, request.reason) == (RequestKind.CHANGE_SETTINGS, "slow")
    assert request.command.parameters == {"execution.checkpointing.timeout": "1 min"}


def test_a_restore_request_passes_on_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict = {}

    def restore(what: Restore, **options: object) -> RequestId:
        asked.update(options, what=what)
        raise Rejected("Not now.")

    monkeypatch.setattr(point_services, "restore", restore)
    arguments = ["restore", "flights", "/x", "--claim-mode", "claim", "--allow-non-restored-state"]
    arguments += ["--set", "execution.checkpointing.interval=5 s", "--map", "a=b"]
    arguments += ["--accept-gap", "events s 5-9"]

    with pytest.raises(CommandError, match=r"Not now\."):
        call_command("pipeline", *arguments)

    assert asked["what"].allow_non_restored_state
    assert asked["what"].replays is None
    assert asked["what"].renamed == {"a": "b"}
    assert asked["what"].gaps == ["events s 5-9"]
    assert asked["what"].settings == {"execution.checkpointing.interval": "5 s"}
    assert asked["claim_mode"] is ClaimMode.CLAIM


@pytest.mark.parametrize(
    ("words", "sources"), [([], []), (["--source", "a", "--source", "b"], ["a", "b"])]
)
def test_a_replay_request_passes_on_the_given_point_and_sources(
    monkeypatch: pytest.MonkeyPatch, words: list[str], sources: list[str]
) -> None:
    asked: dict = {}

    def restore(what: Restore, **options: object) -> RequestId:
        asked.update(options, what=what)
        raise Rejected("Not now.")

    monkeypatch.setattr(point_services, "restore", restore)
    arguments = ["replay-quarantine", "flights", "--checkpoint", "/x", "--parallelism", "3", *words]

    with pytest.raises(CommandError, match=r"Not now\."):
        call_command("pipeline", *arguments)

    restored = Restore(pipeline="flights", path="/x", parallelism=3, replays=sources)
    assert asked["what"] == restored
    assert asked["requester"]


@pytest.mark.parametrize("refusal", ["", "The file a.parquet is missing."])
def test_the_preflight_lists_its_findings_and_exits_with_1_on_refusal(
    monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    findings = [Finding(Check.MANIFEST, Outcome.FINE, "Savepoint 7.")]
    if refusal:
        findings.append(Finding(Check.FILES, Outcome.REFUSED, refusal))
    verdict = Verdict(path="/points/7", findings=tuple(findings))
    monkeypatch.setattr(point_services, "preflight", lambda _: verdict)
    output = StringIO()

    if refusal:
        with pytest.raises(CommandError, match="/points/7 cannot be restored") as refused:
            call_command("pipeline", "preflight", "flights", "/points/7", stdout=output)
        assert refused.value.returncode == 1
        assert refusal in output.getvalue()
    else:
        (answered,) = answer("preflight", "flights", "/points/7", "--json")
        assert (answered["is_possible"], answered["path"]) == (True, "/points/7")


@pytest.mark.parametrize("confirmation", [[], ["--confirm", "flights"]])
def test_a_disposal_has_to_be_confirmed_with_the_name_of_the_savepoint(
    confirmation: list[str],
) -> None:
    running()

    with pytest.raises(CommandError, match="--confirm savepoint-1-7"):
        call_command("pipeline", "dispose", "flights", "/points/savepoint-1-7/", *confirmation)

    assert not Request.objects.exists()


def test_a_confirmed_disposal_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict = {}

    def dispose(**options: object) -> RequestId:
        asked.update(options)
        raise Rejected("Not now.")

    monkeypatch.setattr(point_services, "dispose", dispose)
    path = "/points/savepoint-1-7"

    with pytest.raises(CommandError, match=r"Not now\."):
        call_command("pipeline", "dispose", "flights", path, "--confirm", "savepoint-1-7")

    assert (asked["pipeline"], asked["path"]) == ("flights", path)


def test_lineage_shows_every_run_with_its_points() -> None:
    run = running()

    (shown,) = answer("lineage", "flights", "--json")
    output = StringIO()
    call_command("pipeline", "lineage", "flights", stdout=output)

    assert (shown["run_id"], shown["depth"]) == (run.run_id, 0)
    assert [point["checkpoint_id"] for point in shown["points"]] == [1]
    assert output.getvalue().splitlines()[0].startswith(f"flights/{run.run_id}")


def printed(*arguments: str) -> list[str]:
    output = StringIO()
    call_command("pipeline", *arguments, stdout=output)
    return output.getvalue().splitlines()


def answer(*arguments: str) -> Any:
    output = StringIO()
    call_command("pipeline", *arguments, stdout=output)
    return json.loads(output.getvalue())


def running() -> Run:
    run = new_run()
    Story(run).started().completed()
    Projector().run_once()
    return run
