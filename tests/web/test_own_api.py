"""Our own interface: described, guarded, and with the same answers as the pages."""

import json
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import TokenScope
from ftdash.alerts import evaluation
from ftdash.alerts.models import AlertRule
from ftdash.api.own import urls
from ftdash.api.own.door import description
from ftdash.gameday.models import GameDay
from ftdash.jobs.models import (
    Pipeline,
    PointComparison,
    PointInspection,
    Request,
    Run,
)
from ftdash.lab.models import Lab, LabState
from ftdash.points.services import comparisons
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore
from ftdash.projection.projector import Projector
from pipelines.domain.commands import RequestKind
from pipelines.domain.ids import Attempt, RequestId
from pipelines.lab.options import LabOptions
from tests.unit.lab.reports import mode, report
from tests.web.api_callers import bearer, running
from tests.web.default_rules import make_default_rules
from tests.web.journals import Story, quarantined
from tests.web.savepoint_stories import path_of, stopped_run

pytestmark = pytest.mark.usefixtures("site", "patient")

READINGS = {
    "/pipelines": lambda body: body["pipelines"][0]["name"] == "flights",
    "/pipelines/flights": lambda body: body["run"]["state"] == "RUNNING",
    "/pipelines/flights/lineage": lambda body: body[0]["run_id"] == "flights-1",
    "/pipelines/flights/recovery-points": lambda body: body[0]["checkpoint_id"] == 1,
    "/pipelines/flights/recovery-choice": lambda body: body["points"][0]["fitness"] == "gone",
    "/pipelines/flights/savepoints": lambda body: body["total_count"] == 0,
    "/pipelines/flights/upgrades": lambda body: body == [],
    "/packages": lambda body: body == [],
    "/runs": lambda body: body[0]["pipeline"] == "flights",
    "/runs/flights-1": lambda body: body["vertices"][2]["edges"] == ["hash", "hash"],
    "/runs/flights-1/checkpoints": lambda body: body["rows"][0]["end_to_end_ms"] == 80.0,
    "/runs/flights-1/checkpoints/history?status=COMPLETED&limit=1": lambda body: (
        (body["rows"][0]["row"]["checkpoint_id"], body["match_count"]) == (1, 1)
    ),
    "/runs/flights-1/checkpoints/history?to_id=0": lambda body: body["rows"] == [],
    "/runs/flights-1/checkpoints/statistics": lambda body: body["counts"]["completed"] == 1,
    "/runs/flights-1/checkpoints/1": lambda body: body["slowest"]["subtask"] == 1,
    "/runs/flights-1/checkpoints/1/comparison?other=1": lambda body: (
        (body["other"]["found"]["row"]["checkpoint_id"], body["growth"]) == (1, None)
    ),
    "/pipelines/flights/planner": lambda body: body["facts"]["costs"]["checkpoint_count"] == 1,
    "/labs": lambda body: body == [],
    "/runs/flights-1/recoveries": lambda body: (
        body["recoveries"][0]["phases"][0]["phase"] == "detect"
    ),
    "/runs/flights-1/quarantine": lambda body: body == [],
    "/runs/flights-1/samples?limit=1": lambda body: len(body) == 1,
    "/runs/flights-1/ledger": lambda body: body == {"lines": [], "waiting": [], "held": []},
    "/pipelines/flights/audits": lambda body: body == [],
    "/runs/flights-1/loads": lambda body: body["subtasks"][0]["busy_ratio"] == 0.5,
    "/events?kind=recovery&since=2020-01-01T00:00:00Z": lambda body: (
        [line["outcome"] for line in body["lines"]] == ["all subtasks run again"]
    ),
    "/game-days": lambda body: (body["days"], body["scores"]) == ([], []),
    "/requests": lambda body: body[0]["request_id"] == "request-1",
    "/requests/request-1": lambda body: body["requester"] == "ann",
    "/tokens": lambda body: (
        set(body[0])
        == {
            "name",
            "scope",
            "created_by",
            "created_at",
            "expires_at",
            "has_expired",
            "last_used_at",
            "revoked_by",
            "revoked_at",
        }
    ),
    "/alerts": lambda body: body == [],
    "/alerts/history": lambda body: body["rows"] == [],
    "/alerts/rules": lambda body: "no checkpoint completes" in [rule["name"] for rule in body],
    "/alerts/channels": lambda body: body == [],
    "/people": lambda body: body == [],
    "/history": lambda body: (body[0]["kind"], body[0]["rows"]) == ("METRICS", 2),
    "/history/METRICS/choices": lambda body: body[0]["deletes"] == 0,
    "/settings/log": lambda body: body[0]["subject"] == "token deploy",
}
ACTIONS: dict[str, tuple[dict[str, Any], RequestKind]] = {
    "checkpoints": ({}, RequestKind.CHECKPOINT),
    "savepoints": ({"format": "NATIVE", "label": "before"}, RequestKind.SAVEPOINT),
    "stop": ({"drain": True}, RequestKind.STOP_WITH_SAVEPOINT),
    "cancel": ({}, RequestKind.CANCEL),
    "cancel ": ({"with_savepoint": True}, RequestKind.CANCEL_WITH_SAVEPOINT),
    "settings": (
        {"settings": {"execution.checkpointing.interval": "7 s"}},
        RequestKind.CHANGE_SETTINGS,
    ),
    "faults": ({"slot": 1}, RequestKind.KILL_SLOT),
    "allowed-faults": ({"is_allowed": False}, RequestKind.ALLOW_FAULTS),
}


def test_quarantined_records_are_returned_newest_first() -> None:
    running()
    run = Run.objects.get(run_id="flights-1")
    Story(run).tell(quarantined(7, count=1), quarantined(8, count=2), quarantined(9, count=3))
    Projector().run_once()

    answer = bearer(TokenScope.READ).get("/api/runs/flights-1/quarantine?limit=2")

    assert [(each["offset"], each["error"]) for each in answer.json()] == [
        (9, "9 is bad"),
        (8, "8 is bad"),
    ]


def test_every_query_has_an_address_and_answers() -> None:
    make_default_rules()
    running()
    client = bearer(TokenScope.READ)

    for address, is_right in READINGS.items():
        answer = client.get(f"/api{address}")

        assert answer.status_code == 200, (address, answer.content)
        assert is_right(answer.json()), (address, answer.json())
        assert "no-store" in answer["Cache-Control"]


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_stores_one_request_and_returns_its_id(action: str) -> None:
    running()
    given, kind = ACTIONS[action]
    client = bearer(TokenScope.ACT)

    answer = post(client, f"pipelines/flights/{action.strip()}", {"reason": "drill", **given})

    assert answer.status_code == 202, answer.content
    stored = Request.objects.exclude(request_id="request-1").get()
    assert (stored.kind, stored.requester, stored.reason) == (kind, "token deploy", "drill")
    assert answer.json()["request_id"] == stored.request_id


def test_a_retry_ends_a_wait_for_restart_once_and_is_refused_otherwise() -> None:
    running()
    client, address = bearer(TokenScope.ACT), "pipelines/flights/retry"
    refused = post(client, address, {"reason": "drill"})
    story = Story(Run.objects.get())
    story.attempt = Attempt(2)
    story.waits_for_restart()
    Projector().run_once()

    asked = {"reason": "it is up again", "request_id": "retry-1"}
    answers = [post(client, address, asked) for _ in range(2)]

    assert refused.status_code == 422
    assert refused.json()["errors"] == ["flights does not wait for a restart: it is RUNNING."]
    assert [answer.status_code for answer in answers] == [202, 202], answers[0].content
    stored = Request.objects.exclude(request_id="request-1").get()
    assert (stored.kind, stored.requester) == (RequestKind.RETRY_NOW, "token deploy")
    assert (answers[1].json()["request_id"], stored.run) == ("retry-1", story.run)


def test_a_savepoint_is_labelled_and_found_by_its_key() -> None:
    run = stopped_run()
    client = bearer(TokenScope.ACT)
    asked = {"path": path_of(run), "label": "before", "reason": "drill"}

    answer = post(client, "pipelines/views/savepoint-labels", asked)

    assert answer.status_code == 202, answer.content
    assert answer.json()["phase"] == "SUCCEEDED"
    (listed,) = client.get("/api/pipelines/views/savepoints").json()["rows"]
    assert (listed["key"], listed["label"]) == ("views-1-1", "before")
    assert client.get("/api/savepoints/views-1-1").json() == listed
    assert client.get("/api/savepoints/views-1-9").status_code == 404


def test_the_rows_in_a_savepoint_are_returned_page_by_page() -> None:
    stopped_run(keys=(60,))
    client = bearer(TokenScope.READ)

    operators = client.get("/api/savepoints/views-1-1/operators").json()
    state = {"uid": "views", "state": operators[1]["states"][0]["state"]}
    first = client.get("/api/savepoints/views-1-1/rows", state).json()
    second = client.get("/api/savepoints/views-1-1/rows", {**state, **first["next"]}).json()
    refused = client.get("/api/savepoints/views-1-1/rows", {**state, "uid": "x"})

    assert [len(page["rows"]) for page in (first, second)] == [50, 10]
    assert second["next"] is None
    assert refused.status_code == 422
    assert "an operator 'x'" in refused.json()["errors"][0]


def test_savepoints_are_verified_and_compared_step_by_step() -> None:
    stopped_run(keys=(20, 60))
    client = bearer(TokenScope.ACT)
    address, since = "/api/savepoints/views-1-2/comparison", {"since": "views-1-1"}

    verified = post(client, "savepoints/views-1-2/verification", {})
    unasked = client.get(address, since)
    asked = post(client, "savepoints/views-1-2/comparison", since)
    comparisons.go_on_inspecting(PointInspection.objects.get().pk)
    comparisons.go_on_comparing(PointComparison.objects.get().pk)

    assert verified.json()["reading"]["ended_at"] is None
    assert client.get("/api/savepoints/views-1-2").json()["verified_at"]
    assert unasked.status_code == 404
    assert (asked.status_code, asked.json()["parts"]) == (202, None)
    (state,) = client.get(address, since).json()["states"]
    assert (state["added"], state["removed"], state["changed"]) == (40, 0, 0)
    assert post(client, "savepoints/views-1-9/verification", {}).status_code == 404


def test_an_audit_is_requested_and_found_again() -> None:
    running()
    client = bearer(TokenScope.ACT)

    answer = post(client, "pipelines/flights/audits", {})

    assert answer.status_code == 202, answer.content
    assert [(each["requester"], each["state"]) for each in answer.json()] == [
        ("token deploy", "WAITING")
    ]
    assert client.get("/api/pipelines/flights/audits").json() == answer.json()
    assert post(client, "pipelines/nothing/audits", {}).status_code == 422


def test_a_replay_of_the_quarantine_is_accepted_or_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running()
    client, asked = bearer(TokenScope.ACT), list[Restore]()

    def restore(what: Restore, **options: object) -> RequestId:
        asked.append(what)
        return RequestId("request-1")

    live = post(client, "pipelines/flights/replay-quarantine", {"reason": "drill"})
    monkeypatch.setattr(point_services, "restore", restore)
    given = {"reason": "drill", "path": "/x", "sources": ["numbers"]}
    answer = post(client, "pipelines/flights/replay-quarantine", given)

    assert live.status_code == 422
    assert "has no recovery point to continue from" in live.content.decode()
    assert answer.status_code == 202, answer.content
    assert [(each.path, each.replays) for each in asked] == [("/x", ["numbers"])]


def test_a_restore_request_passes_on_the_accepted_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    running()
    client, asked = bearer(TokenScope.ACT), list[Restore]()
    gap = "events clicks-0 1200-4799"

    def restore(what: Restore, **options: object) -> RequestId:
        asked.append(what)
        return RequestId("request-1")

    monkeypatch.setattr(point_services, "restore", restore)
    given = {"reason": "agreed", "path": "/x", "accepted_gaps": [gap]}
    answer = post(client, "pipelines/flights/restore", given)

    assert answer.status_code == 202, answer.content
    assert [each.gaps for each in asked] == [[gap]]


def test_asking_twice_under_one_id_is_one_request() -> None:
    running()
    client = bearer(TokenScope.ACT)
    asked = {"reason": "drill", "request_id": "nightly-1"}

    ids = {
        post(client, "pipelines/flights/savepoints", asked).json()["request_id"] for _ in range(2)
    }

    assert ids == {"nightly-1"}


def test_a_fault_requested_twice_under_one_id_happens_once() -> None:
    running()
    Pipeline.objects.update(allows_faults=True)
    client = bearer(TokenScope.ACT)
    day = {"reason": "drill", "request_id": "nightly-1", "fault": "KILL_SLOT", "slot": 1}
    kill = {"reason": "drill", "request_id": "nightly-2", "slot": 1}

    days = [post(client, "pipelines/flights/game-days", day) for _ in range(2)]
    kills = [post(client, "pipelines/flights/faults", kill) for _ in range(2)]

    assert [answer.status_code for answer in (*days, *kills)] == [202] * 4
    assert days[0].json()["key"] == days[1].json()["key"]
    assert GameDay.objects.count() == 1
    assert Request.objects.filter(kind=RequestKind.KILL_SLOT).count() == 1
    unnamed = {"reason": "drill", "fault": "FREEZE_SLOT"}
    told = post(client, "pipelines/flights/game-days", unnamed)
    assert (told.status_code, told.json()["errors"]) == (
        422,
        ["Name the slot that is to be hit; there are 0 to 1."],
    )


def test_an_error_is_reported_with_its_place_or_in_one_sentence() -> None:
    running()
    client = bearer(TokenScope.ACT)

    for body, words in [
        ({}, "body.reason: Field required"),
        ({"reason": "x", "colour": "red"}, "Extra inputs"),
        ({"reason": " "}, "Say why in a few words"),
        ({"reason": "x", "format": "ZIP"}, "CANONICAL"),
        ({"reason": "zero \0"}, "pattern"),
    ]:
        answer = post(client, "pipelines/flights/savepoints", body)

        assert answer.status_code == 422, answer.content
        assert words in answer.json()["errors"][0]
    Run.objects.update(status="RESTARTING")
    refused = post(client, "pipelines/flights/savepoints", {"reason": "x"})
    assert "RESTARTING" in refused.json()["errors"][0]
    assert Request.objects.count() == 1


def test_unknown_names_are_not_found() -> None:
    running()
    client = bearer(TokenScope.READ)

    for address in (
        "pipelines/x",
        "runs/x",
        "runs/x/checkpoints",
        "requests/x",
        "runs/x/recoveries",
        "runs/flights-1/checkpoints/1/comparison?other=7",
        "pipelines/x/planner",
        "labs/7",
    ):
        answer = client.get(f"/api/{address}")

        assert answer.status_code == 404
        assert answer.json()["errors"][0].startswith("There is no ")


def test_a_number_out_of_range_is_refused() -> None:
    client = bearer(TokenScope.READ)

    for address in (f"runs/x/checkpoints/{2**63}", "requests?limit=0", "runs/x/samples?limit=9999"):
        assert client.get(f"/api/{address}").status_code == 422


def test_a_lab_is_requested_once_and_found_under_its_key() -> None:
    client = bearer(TokenScope.ACT)
    asked = {"reason": "to compare", "records": 5_000, "modes": ["acked"]}

    told = post(client, "labs", {**asked, "records": 5})
    answer = post(client, "labs", asked)
    again = post(client, "labs", asked)

    assert (told.status_code, told.json()["errors"]) == (
        422,
        ["--records is 5; give a number from 1000 to 10000000."],
    )
    assert answer.status_code == 202, answer.content
    stored = Lab.objects.get()
    found = client.get(f"/api/labs/{stored.pk}").json()
    assert found == answer.json() == client.get("/api/labs").json()[0]
    assert (found["options"]["records"], found["options"]["modes"]) == (5_000, ["acked"])
    assert (found["options"]["seed"], found["report"]) == (LabOptions().seed, None)
    assert (stored.requested_by, stored.reason) == ("token deploy", "to compare")
    assert (again.status_code, Lab.objects.count()) == (422, 1)


def test_the_report_of_a_lab_matches_its_description() -> None:
    now, client = timezone.now(), bearer(TokenScope.READ)
    told = json.loads(msgspec.json.encode(report(mode("exactly-once"))))
    row = Lab.objects.create(
        options=told["options"], state=LabState.ENDED, asked_at=now, ended_at=now, report=told
    )

    found = client.get(f"/api/labs/{row.pk}").json()
    described = client.get("/api/openapi.json").json()["components"]["schemas"]["LabAnswer"]

    assert found["report"] == told
    (shape, _) = described["properties"]["report"]["anyOf"]
    assert set(shape["properties"]) == set(told)
    assert set(shape["properties"]["modes"]["items"]["properties"]) == set(told["modes"][0])


def test_the_planner_returns_the_measurements_and_its_advice() -> None:
    running()

    found = bearer(TokenScope.READ).get("/api/pipelines/flights/planner").json()

    assert found["facts"]["failures"]["failure_count"] == 1
    assert found["advised_ms"] > 0
    assert 0 < found["lost_ratio_advised"] <= found["lost_ratio_now"]


def test_an_alert_is_acknowledged_in_the_name_of_the_token() -> None:
    make_default_rules()
    running()
    rule, pipeline = AlertRule.objects.all()[0], Pipeline.objects.get()
    evaluation.fire(rule, pipeline, 95.0, timezone.now(), fire_above=60.0)
    client = bearer(TokenScope.ACT)
    (alert,) = client.get("/api/alerts").json()
    address = f"alerts/{alert['key']}/acknowledgement"

    answer = post(client, address, {"reason": "I am on it"})
    again = post(client, address, {"reason": "I am on it"})

    assert answer.status_code == 202, answer.content
    assert answer.json() == client.get("/api/alerts").json()[0]
    assert answer.json()["acknowledged_by"] == "token deploy"
    assert again.status_code == 422
    assert post(client, "alerts/999/acknowledgement", {"reason": "x"}).status_code == 422


def test_the_description_names_every_address_and_its_answer() -> None:
    described = bearer(TokenScope.READ).get("/api/openapi.json").json()

    assert Client().get("/api/openapi.json").status_code == 401
    known = {pattern.pattern._route for pattern in urls.urlpatterns if pattern.name != "openapi"}
    assert len(described["paths"]) == len(known)
    for operations in described["paths"].values():
        for operation in operations.values():
            (status,) = operation["responses"]
            assert operation["responses"][status]["content"]["application/json"]["schema"]
    assert described == json.loads(json.dumps(description()))


def post(client: Client, address: str, body: dict[str, Any]) -> Any:
    return client.post(f"/api/{address}", json.dumps(body), content_type="application/json")
