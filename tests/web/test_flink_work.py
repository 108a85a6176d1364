"""Requests to a watched Flink's jobs end once, and are not sent twice silently."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import AdminAction, TokenScope
from ftdash.flink_clusters.models import (
    FlinkAction,
    FlinkActionKind,
    FlinkActionState,
    FlinkCluster,
)
from ftdash.flink_clusters.services import actions, looking, registration
from ftdash.flink_clusters.services.registration import Place
from ftdash.flink_clusters.triggers import (
    OUTCOME_WITHIN,
    SEND_AGAIN_WITHIN,
    SEND_WITHIN,
    TriggerOptions,
)
from pipelines.domain.errors import Rejected
from tests.web.api_callers import bearer
from tests.web.page_words import text_of, words_in
from tests.web.recorded_flink import RecordedFlink, recorded_flink

pytestmark = pytest.mark.usefixtures("site")

KINDS = list(FlinkActionKind)


@pytest.fixture
def flink() -> Iterator[RecordedFlink]:
    with recorded_flink("2.3") as flink:
        place = Place(address=flink.address)
        row = registration.watch(name="prod", place=place, requester="ada", reason="to see it")
        looking.look(row.pk)
        flink.forget_requests()
        yield flink


def asked(flink: RecordedFlink, kind: FlinkActionKind, **more: Any) -> FlinkAction:
    key = actions.ask(
        "prod", flink.jid, kind, TriggerOptions(**more), requester="ada", reason="a deploy"
    )
    return FlinkAction.objects.get(pk=key)


def look(row: FlinkAction) -> FlinkAction:
    looking.look(FlinkCluster.objects.get().pk)
    row.refresh_from_db()
    return row


def later(row: FlinkAction, after: timedelta) -> None:
    """Moves everything that has happened to the row further into the past."""
    columns = ("created_at", "sent_at", "answered_at")
    known = {name: getattr(row, name) - after for name in columns if getattr(row, name)}
    FlinkAction.objects.filter(pk=row.pk).update(**known)


def recorded(flink: RecordedFlink, row: FlinkAction, name: str) -> None:
    flink.outcomes[row.trigger_id] = flink.bodies[name]["body"]


@pytest.mark.parametrize(
    ("kind", "body", "location", "checkpoint_id"),
    [
        (FlinkActionKind.SAVEPOINT, "savepoint_done", "file:/data/savepoints/savepoint-", None),
        (FlinkActionKind.STOP, "stop_done", "file:/data/savepoints/savepoint-", None),
        (FlinkActionKind.CHECKPOINT, "checkpoint_done", "", 16),
    ],
)
def test_a_trigger_is_followed_to_its_end(
    flink: RecordedFlink,
    kind: FlinkActionKind,
    body: str,
    location: str,
    checkpoint_id: int | None,
) -> None:
    row = asked(flink, kind)
    assert row.state == FlinkActionState.WAITING

    assert look(row).state == FlinkActionState.ACCEPTED
    assert look(row).state == FlinkActionState.ACCEPTED
    recorded(flink, row, body)
    assert look(row).state == FlinkActionState.SUCCEEDED
    ended_at = row.ended_at

    assert row.location.startswith(location)
    assert row.checkpoint_id == checkpoint_id
    assert (flink.triggers[row.trigger_id], row.sent_count, row.note) == (1, 1, "")
    flink.forget_requests()
    assert look(row).ended_at == ended_at
    assert [each for each in flink.requests if row.trigger_id in each] == []


def test_a_failure_in_flink_ends_the_action_with_flinks_message(flink: RecordedFlink) -> None:
    row = asked(flink, FlinkActionKind.SAVEPOINT, directory="file:///proc/nothing")
    look(row)
    recorded(flink, row, "savepoint_failed")

    assert look(row).state == FlinkActionState.FAILED
    assert "IO-problem detected" in row.problem
    assert "\n" not in row.problem


def test_a_cancel_succeeds_only_when_flink_reports_canceled(flink: RecordedFlink) -> None:
    row = asked(flink, FlinkActionKind.CANCEL)

    assert look(row).state == FlinkActionState.ACCEPTED
    assert look(row).state == FlinkActionState.ACCEPTED
    flink.job["state"] = "CANCELED"
    assert look(row).state == FlinkActionState.SUCCEEDED
    assert flink.cancelled == 1
    with pytest.raises(Rejected, match="The job has ended"):
        asked(flink, FlinkActionKind.SAVEPOINT)


def test_a_cancel_fails_when_the_job_ends_by_itself(flink: RecordedFlink) -> None:
    row = asked(flink, FlinkActionKind.CANCEL)
    look(row)
    flink.job["state"] = "FINISHED"

    assert look(row).state == FlinkActionState.FAILED
    assert "it had ended by itself as FINISHED" in row.problem


def test_an_action_that_flink_accepted_is_not_sent_again_after_a_worker_died(
    flink: RecordedFlink,
) -> None:
    row = asked(flink, FlinkActionKind.SAVEPOINT)
    flink.loses_answers = True
    assert look(row).state == FlinkActionState.SENT  # as after a kill: no answer was stored
    flink.loses_answers = False

    recorded(flink, row, "savepoint_done")
    assert look(row).state == FlinkActionState.SUCCEEDED
    assert (flink.triggers[row.trigger_id], row.sent_count, row.note) == (1, 1, "")


@pytest.mark.parametrize("kind", [FlinkActionKind.SAVEPOINT, FlinkActionKind.STOP])
def test_an_action_that_a_dead_worker_did_not_send_is_sent_with_a_note(
    flink: RecordedFlink, kind: FlinkActionKind
) -> None:
    row = asked(flink, kind)
    now = timezone.now()
    FlinkAction.objects.update(state=FlinkActionState.SENT, sent_at=now, sent_count=1)

    assert look(row).state == FlinkActionState.ACCEPTED

    asking = f"GET /jobs/{flink.jid}/savepoints/{row.trigger_id}"
    sending = f"POST /jobs/{flink.jid}/{'stop' if kind == FlinkActionKind.STOP else 'savepoints'}"
    assert flink.requests.index(asking) < flink.requests.index(sending)
    assert (flink.triggers[row.trigger_id], row.sent_count) == (1, 2)
    assert "sent again under the same id" in row.note


def test_an_action_that_flink_may_have_forgotten_is_never_sent_again(flink: RecordedFlink) -> None:
    row = asked(flink, FlinkActionKind.SAVEPOINT)
    FlinkAction.objects.update(
        state=FlinkActionState.SENT, sent_at=timezone.now() - SEND_AGAIN_WITHIN * 2, sent_count=1
    )

    assert look(row).state == FlinkActionState.UNKNOWN
    assert "Look for its savepoint" in row.problem
    assert flink.triggers == {}


def test_a_trigger_that_flink_accepted_and_forgot_has_no_known_outcome(
    flink: RecordedFlink,
) -> None:
    row = asked(flink, FlinkActionKind.STOP)
    look(row)
    flink.triggers.clear()  # as on another JobManager

    assert look(row).state == FlinkActionState.UNKNOWN
    assert flink.triggers == {}
    row = asked(flink, FlinkActionKind.STOP)
    assert row.state == FlinkActionState.WAITING


def test_an_action_for_a_dead_cluster_fails_unsent_or_ends_unknown(flink: RecordedFlink) -> None:
    waiting, sent = asked(flink, FlinkActionKind.CHECKPOINT), asked(flink, FlinkActionKind.STOP)
    FlinkAction.objects.filter(pk=sent.pk).update(
        state=FlinkActionState.ACCEPTED, sent_at=timezone.now(), sent_count=1
    )
    sent.refresh_from_db()
    FlinkCluster.objects.update(address="http://127.0.0.1:1")

    assert look(waiting).state == FlinkActionState.WAITING
    later(waiting, SEND_WITHIN)
    later(sent, OUTCOME_WITHIN)
    assert look(waiting).state == FlinkActionState.FAILED
    assert "nothing was asked of it" in waiting.problem
    sent.refresh_from_db()
    assert sent.state == FlinkActionState.UNKNOWN


def test_an_action_for_an_unreachable_cluster_stays_unsent(flink: RecordedFlink) -> None:
    row = asked(flink, FlinkActionKind.SAVEPOINT)
    cluster = FlinkCluster.objects.get()
    dead = looking.FlinkRest("http://127.0.0.1:1", {}, before_each=lambda: None)

    with dead, pytest.raises(looking.Silent):
        actions.carry_on(cluster, dead)

    row.refresh_from_db()
    assert (row.state, row.sent_count, row.sent_at) == (FlinkActionState.WAITING, 0, None)


def test_each_kind_has_one_open_action_and_an_action_ends_once(flink: RecordedFlink) -> None:
    row = asked(flink, FlinkActionKind.SAVEPOINT)
    with pytest.raises(Rejected, match="is under way already"):
        asked(flink, FlinkActionKind.SAVEPOINT)

    actions._end(row, FlinkActionState.FAILED, problem="first")
    actions._end(row, FlinkActionState.SUCCEEDED)

    row.refresh_from_db()
    assert (row.state, row.problem) == (FlinkActionState.FAILED, "first")


def test_an_admin_starts_an_action_on_the_page_and_the_audit_log_keeps_it(
    flink: RecordedFlink, admin: Client, operator: Client
) -> None:
    page = f"/flink-clusters/prod/jobs/{flink.jid}/"
    assert "the job keeps running" in words_in(text_of(admin, f"{page}ask/stop/"))
    given = {"directory": "s3://b/s", "savepoint_format": "NATIVE", "reason": "a deploy"}

    assert admin.post(f"{page}ask/stop/", given).url == page
    again = admin.post(f"{page}ask/stop/", given)
    assert again.status_code == 422
    assert "is under way already" in words_in(again.content.decode())

    row = FlinkAction.objects.get()
    assert (row.kind, row.asked["directory"], row.asked["savepoint_format"]) == (
        FlinkActionKind.STOP,
        "s3://b/s",
        "NATIVE",
    )
    look(row)
    recorded(flink, row, "stop_done")
    look(row)
    words = words_in(text_of(operator, page))
    assert f"stop with savepoint, {row.requester}: a deploy succeeded" in words
    assert row.location in words
    logged = AdminAction.objects.latest("pk")
    assert logged.what == "asked Flink to stop with a savepoint"
    assert logged.subject == f"Flink job prod/{flink.jid}"


def test_the_api_starts_actions_for_tokens_that_may_act(flink: RecordedFlink) -> None:
    path = f"/api/flink-clusters/prod/jobs/{flink.jid}/actions"
    acting = bearer(TokenScope.ACT)
    reading = bearer(TokenScope.READ, name="reader")
    body = {"kind": "CHECKPOINT", "checkpoint_type": "FULL", "reason": "nightly"}

    assert reading.post(path, body, content_type="application/json").status_code == 403
    answer = acting.post(path, body, content_type="application/json").json()
    assert (answer["kind"], answer["state"]) == ("CHECKPOINT", "WAITING")
    row = FlinkAction.objects.get(pk=answer["key"])
    look(row)
    recorded(flink, row, "checkpoint_done")
    look(row)

    found = reading.get(f"/api/flink-clusters/prod/actions/{row.pk}").json()
    assert (found["state"], found["checkpoint_id"]) == ("SUCCEEDED", 16)
    assert [each["key"] for each in reading.get(path).json()] == [row.pk]


def test_the_command_watches_a_cluster_with_a_header_and_carries_out_an_action(
    flink: RecordedFlink, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = flink.bodies["savepoint_done"]["body"]
    monkeypatch.setattr(flink, "outcomes", _Always(done))
    monkeypatch.setattr(flink, "token", "s3cr3t-of-the-proxy")
    monkeypatch.setenv("FTDASH_FLINK_HEADER", f"Authorization: Bearer {flink.token}")
    call_command("watch_flink", "add", "prod", flink.address)
    call_command("watch_flink", "jobs", "prod")
    call_command("watch_flink", "list")
    call_command("watch_flink", "savepoint", "prod", flink.jid, "--native")
    printed = capsys.readouterr().out

    assert "prod is watched: Flink " in printed
    assert flink.token not in printed
    assert f"{flink.jid}  RUNNING" in printed
    assert f"prod  RUNNING  1 running job  {flink.address}" in printed
    assert f"savepoint succeeded {done['operation']['location']}" in printed
    monkeypatch.setattr(flink, "outcomes", _Always(flink.bodies["savepoint_failed"]["body"]))
    with pytest.raises(CommandError, match="IO-problem detected") as failed:
        call_command("watch_flink", "stop", "prod", flink.jid)
    assert failed.value.returncode == 1
    with pytest.raises(CommandError, match="has no job") as refused:
        call_command("watch_flink", "cancel", "prod", "0" * 32)
    assert refused.value.returncode == 2


class _Always(dict[str, Any]):
    """Returns the same outcome for every trigger."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self._outcome = outcome

    def get(self, key: str, default: Any = None) -> Any:
        return self._outcome
