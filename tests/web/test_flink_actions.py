"""Actions through Flink's routes: the stored request, the answer, and the refusals."""

import base64
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.test.client import MULTIPART_CONTENT

from ftdash.accounts.models import TokenScope
from ftdash.api.flink.names import job_id
from ftdash.jobs.models import DesiredState, Request, RequestPhase, Run
from ftdash.points.services import disposal
from ftdash.projection.projector import Projector
from pipelines.domain.commands import (
    Command,
    RequestKind,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.status import CheckpointKind, JobStatus
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.points.stored_views import publish_views, write_events
from tests.web.api_callers import bearer, beat
from tests.web.flink_reading import JOB
from tests.web.journals import Story, new_request, new_run
from tests.web.people import admin_user, signed_in

pytestmark = pytest.mark.usefixtures("site")

TRIGGER = "ab" * 16
IMPOSSIBLE: list[tuple[str, Any, str]] = [
    ("savepoints", {"target-directory": "/elsewhere"}, "execution.checkpointing.savepoint-dir"),
    ("stop", {"targetDirectory": "file:///elsewhere"}, "leave the directory away"),
    ("savepoints", {"formatType": "ZIP"}, "CANONICAL or NATIVE"),
    ("savepoints", {"triggerId": "mine"}, "triggerId"),
    ("checkpoints", {"checkpointType": "INCREMENTAL"}, "is full"),
    ("checkpoints", {"checkpointType": "HALF"}, "CONFIGURED or FULL"),
    ("savepoints", {"cancel-job": "perhaps"}, "cannot be read"),
    ("savepoints", [1], "cannot be read"),
]
OWN_SCRIPT = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}


@pytest.fixture
def client(site: Path) -> Client:
    running()
    return bearer(TokenScope.ACT)


@pytest.mark.parametrize(
    ("route", "body", "kind", "parameters"),
    [
        ("savepoints", None, "SAVEPOINT", {"type": "CANONICAL"}),
        ("savepoints", {"bogus": 1}, "SAVEPOINT", {"type": "CANONICAL"}),
        ("savepoints", {"formatType": "NATIVE"}, "SAVEPOINT", {"type": "NATIVE"}),
        ("savepoints", {"cancel-job": True}, "CANCEL_WITH_SAVEPOINT", {"type": "CANONICAL"}),
        ("savepoints", {"cancel-job": None}, "SAVEPOINT", {"type": "CANONICAL"}),
        ("stop", {"drain": False}, "STOP_WITH_SAVEPOINT", {"type": "CANONICAL"}),
        (
            "stop",
            {"drain": True, "formatType": "NATIVE", "targetDirectory": None},
            "STOP_WITH_SAVEPOINT",
            {"type": "NATIVE", "drain": "true"},
        ),
        ("checkpoints", {"checkpointType": "FULL"}, "CHECKPOINT", {}),
        ("checkpoints", None, "CHECKPOINT", {}),
    ],
)
def test_each_action_becomes_one_request_in_the_name_of_the_token(
    client: Client, route: str, body: Any, kind: str, parameters: dict[str, str]
) -> None:
    answer = post(client, f"jobs/{JOB}/{route}", body)

    request = Request.objects.get()
    assert (answer.status_code, answer.json()) == (202, {"request-id": request.request_id})
    assert (request.kind, request.command.parameters) == (kind, parameters)
    assert (request.requester, request.run.run_id) == ("token deploy", "flights-1")
    assert len(request.request_id) == 32


def test_the_same_trigger_id_twice_is_one_request(client: Client) -> None:
    for _ in range(2):
        answer = post(client, f"jobs/{JOB}/savepoints", {"triggerId": TRIGGER})

        assert answer.json() == {"request-id": TRIGGER}
    assert Request.objects.count() == 1


@pytest.mark.parametrize(
    ("route", "command", "path", "operation"),
    [
        ("savepoints", TakeSavepoint(), "/sp/1", {"location": "/sp/1"}),
        ("savepoints", StopWithSavepoint(), "/sp/1", {"location": "/sp/1"}),
        ("checkpoints", TriggerCheckpoint(), None, {"checkpointId": 7}),
    ],
)
def test_a_client_polls_until_there_is_a_result(
    client: Client, route: str, command: Command, path: str | None, operation: dict[str, Any]
) -> None:
    run = Run.objects.get()
    new_request(run, command, request_id=TRIGGER)
    address = f"/v1/jobs/{JOB}/{route}/{TRIGGER}"

    assert client.get(address).json() == {"status": {"id": "IN_PROGRESS"}, "operation": None}

    Request.objects.update(
        phase=RequestPhase.SUCCEEDED, path=path, checkpoint_id=7, message="Done."
    )
    assert client.get(address).json() == {"status": {"id": "COMPLETED"}, "operation": operation}


@pytest.mark.parametrize(
    ("route", "command", "field"),
    [
        ("savepoints", TakeSavepoint(), "failure-cause"),
        ("checkpoints", TriggerCheckpoint(), "failureCause"),
    ],
)
@pytest.mark.parametrize("phase", [RequestPhase.FAILED, RequestPhase.REJECTED])
def test_a_failed_operation_is_completed_with_its_cause(
    client: Client, route: str, command: Command, field: str, phase: RequestPhase
) -> None:
    told = {"message": "No disk.", "path": "/sp/1", "checkpoint_id": 7}
    new_request(Run.objects.get(), command, request_id=TRIGGER, phase=phase, **told)

    found = client.get(f"/v1/jobs/{JOB}/{route}/{TRIGGER}").json()

    assert found["status"] == {"id": "COMPLETED"}
    cause = found["operation"][field]
    assert set(cause) == {"class", "stack-trace", "serialized-throwable"}
    assert cause["stack-trace"].endswith("No disk.")
    assert b"No disk." in base64.b64decode(cause["serialized-throwable"])


def test_an_operation_of_another_kind_or_job_is_not_found(client: Client) -> None:
    new_request(Run.objects.get(), TakeSavepoint(), request_id=TRIGGER)
    other = job_id(new_run("other").run_id)

    assert client.get(f"/v1/jobs/{JOB}/checkpoints/{TRIGGER}").status_code == 404
    assert client.get(f"/v1/jobs/{other}/savepoints/{TRIGGER}").status_code == 404
    assert client.get(f"/v1/jobs/{JOB}/savepoints/{'0' * 32}").status_code == 404
    assert client.get(f"/v1/jobs/{JOB}/savepoints/x").status_code == 400


def test_an_invalid_request_is_refused_in_one_sentence(client: Client) -> None:
    for route, body, words in IMPOSSIBLE:
        answer = post(client, f"jobs/{JOB}/{route}", body)

        assert answer.status_code == 400
        assert words in answer.json()["errors"][0]
    assert not Request.objects.exists()


def test_the_runs_own_savepoint_directory_may_be_named(client: Client, site: Path) -> None:
    given = {"target-directory": f"file:{site / 'flights' / 'savepoints'}/"}

    assert post(client, f"jobs/{JOB}/savepoints", given).status_code == 202


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("patch", f"jobs/{JOB}?mode=cancel"),
        ("get", f"jobs/{JOB}/yarn-cancel"),
        ("post", f"applications/{JOB}/cancel"),
    ],
    ids=["patch", "get", "application"],
)
def test_cancelling_stops_the_run(client: Client, method: str, route: str) -> None:
    answer = getattr(client, method)(f"/v1/{route}")

    assert (answer.status_code, answer.json()) == (202, {})
    assert Request.objects.get().kind == RequestKind.CANCEL
    assert Run.objects.get().desired == DesiredState.STOPPED


@pytest.mark.parametrize(
    ("status", "answered"),
    [(JobStatus.CANCELED, 202), (JobStatus.FINISHED, 409), (JobStatus.FAILED, 409)],
)
def test_cancelling_an_ended_run_changes_nothing(
    client: Client, status: JobStatus, answered: int
) -> None:
    Run.objects.update(status=status.value)

    assert client.patch(f"/v1/jobs/{JOB}").status_code == answered
    assert not Request.objects.exists()


@pytest.mark.parametrize(("mode", "status"), [("stop", 308), ("halt", 400)])
def test_other_modes_of_cancelling_are_refused(client: Client, mode: str, status: int) -> None:
    assert client.patch(f"/v1/jobs/{JOB}?mode={mode}").status_code == status
    assert not Request.objects.exists()


def test_a_clients_heartbeat_is_accepted_and_changes_nothing(client: Client) -> None:
    def beats(body: bytes, job: str = JOB) -> Any:
        return client.patch(f"/v1/jobs/{job}/clientHeartbeat", body, "application/json")

    for body in (b'{"expiredTimestamp": 1795229257172}', b"{}", b""):
        assert (beats(body).status_code, beats(body).json()) == (202, {})
    assert beats(b'{"expiredTimestamp": "soon"}').status_code == 400
    assert beats(b"{}", "0" * 32).status_code == 404
    assert not Request.objects.exists()


def test_rescaling_is_disabled_as_in_flink(client: Client) -> None:
    told = {"errors": ["Rescaling is temporarily disabled. See FLINK-12312."]}

    asked = client.patch(f"/v1/jobs/{JOB}/rescaling?parallelism=4")
    progress = client.get(f"/v1/jobs/{JOB}/rescaling/{TRIGGER}")

    assert (asked.status_code, asked.json()) == (503, told)
    assert (progress.status_code, progress.json()) == (503, told)
    assert client.patch("/v1/jobs/x/rescaling").status_code == 400
    assert client.get(f"/v1/jobs/{JOB}/rescaling/x").status_code == 400
    assert not Request.objects.exists()


def test_an_old_job_never_acts_on_the_run_that_followed_it(client: Client) -> None:
    Run.objects.update(status=JobStatus.FINISHED.value)
    newer = Story(new_run()).started()
    Projector().run_once()

    for route in ("savepoints", "stop", "checkpoints"):
        answer = post(client, f"jobs/{JOB}/{route}", None)

        assert answer.status_code == 400
        assert "Run flights-1 of flights is over" in answer.json()["errors"][0]
    assert not Request.objects.exists()
    answer = post(client, f"jobs/{job_id(newer.run.run_id)}/savepoints", None)
    assert answer.status_code == 202


def test_a_savepoint_of_a_run_that_is_not_running_is_refused(client: Client) -> None:
    Run.objects.update(status=JobStatus.RESTARTING.value)

    answer = post(client, f"jobs/{JOB}/savepoints", None)

    assert (answer.status_code, "RESTARTING" in answer.json()["errors"][0]) == (400, True)


def test_disposing_of_a_savepoint_deletes_its_files(client: Client, site: Path) -> None:
    path = stored_savepoint(site)

    answer = post(client, "savepoint-disposal", {"savepoint-path": f"file:{path}"})
    trigger = answer.json()["request-id"]
    address = f"/v1/savepoint-disposal/{trigger}"

    assert answer.status_code == 200
    assert client.get(address).json()["status"]["id"] == "IN_PROGRESS"
    disposal.dispose_of(Request.objects.get().pk)
    assert client.get(address).json() == {"status": {"id": "COMPLETED"}, "operation": {}}
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "savepoint-path"),
        ({"savepoint-path": "/etc"}, "storage"),
        ({"savepoint-path": "{site}/nothing"}, "There is no recovery point"),
    ],
)
def test_a_path_that_is_not_our_savepoint_is_not_disposed_of(
    client: Client, site: Path, body: dict[str, str], words: str
) -> None:
    body = {key: value.format(site=site) for key, value in body.items()}

    answer = post(client, "savepoint-disposal", body)

    assert answer.status_code == 400
    assert words in answer.json()["errors"][0]
    assert not Request.objects.exists()


ACTIONS: dict[str, Callable[[Client], Any]] = {
    "savepoint": lambda client: post(client, f"jobs/{JOB}/savepoints", None),
    "stop": lambda client: post(client, f"jobs/{JOB}/stop", None),
    "checkpoint": lambda client: post(client, f"jobs/{JOB}/checkpoints", None),
    "cancel": lambda client: client.patch(f"/v1/jobs/{JOB}"),
    "cancel by get": lambda client: client.get(f"/v1/jobs/{JOB}/yarn-cancel", headers=OWN_SCRIPT),
    "dispose": lambda client: post(client, "savepoint-disposal", {"savepoint-path": "/x"}),
}


def test_a_read_only_client_may_not_act(operator: Client) -> None:
    running()

    for caller, act in product((operator, bearer(TokenScope.READ)), ACTIONS.values()):
        answer = act(caller)

        assert answer.status_code == 403
        assert "admin role" in answer.json()["errors"][0]
    assert not Request.objects.exists()


def test_a_session_without_its_csrf_token_may_not_act(site: Path) -> None:
    running()
    admin = signed_in(admin_user(), enforce_csrf_checks=True)

    for name in ACTIONS.keys() - {"cancel by get"}:  # it has a rule of its own
        answer = ACTIONS[name](admin)

        assert answer.status_code == 403
        assert "CSRF" in answer.json()["errors"][0]
    assert not Request.objects.exists()


def test_a_session_with_its_csrf_token_may_act(site: Path) -> None:
    running()
    admin = signed_in(admin_user(), enforce_csrf_checks=True)
    admin.get("/")
    token = admin.cookies["csrftoken"].value

    def ask(body: Any, kind: str) -> Any:
        address = f"/jobs/{JOB}/savepoints"
        return admin.post(address, body, content_type=kind, headers={"X-CSRFToken": token})

    assert ask({"a": "1"}, MULTIPART_CONTENT).status_code == 400
    assert ask(b"{}", "application/json").status_code == 202
    assert Request.objects.get().requester == "ada"


def test_a_session_may_cancel_by_get_only_from_our_own_scripts(admin: Client) -> None:
    running()

    for site, mode in (
        ("", ""),
        ("same-origin", "navigate"),
        ("same-origin", "no-cors"),
        ("cross-site", "cors"),
        ("none", "navigate"),
    ):
        origin = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode} if site else {}
        assert admin.get(f"/jobs/{JOB}/yarn-cancel", headers=origin).status_code == 403
    assert not Request.objects.exists()
    assert admin.get(f"/jobs/{JOB}/yarn-cancel", headers=OWN_SCRIPT).status_code == 202


def running() -> Story:
    story = Story(new_run()).started().sampled().completed()
    Projector().run_once()
    beat()
    return story


def stored_savepoint(site: Path) -> Path:
    data = write_events(site / "events")
    path = site / "flights" / "savepoints" / "savepoint-1"
    publish_views(FileSystemCheckpointStore([str(site)]), str(path), data)
    story = Story(new_run("other"))
    story.started().completed(CheckpointKind.SAVEPOINT, path=str(path)).completed()
    Projector().run_once()
    beat()
    return path


def post(client: Client, route: str, body: Any) -> Any:
    content = b"" if body is None else json.dumps(body).encode()
    return client.post(f"/v1/{route}", content, content_type="application/json")
