"""The answers of a Flink cluster are stored for good, and the requests to it are few."""

import html
import re
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import AdminAction, TokenScope
from ftdash.flink_clusters import queries
from ftdash.flink_clusters.models import FlinkCheckpoint, FlinkCluster, FlinkEvent, FlinkJob
from ftdash.flink_clusters.politeness import SETTLED_AFTER_MS, pause_after
from ftdash.flink_clusters.rest import FlinkRest, checked_address
from ftdash.flink_clusters.services import looking, registration
from ftdash.flink_clusters.services.registration import Place, parsed_header
from ftdash.ui.flink_clusters.page import PER_PAGE
from pipelines.domain.errors import Rejected, Retryable
from tests.reserved_ports import reserved_port
from tests.web.api_callers import bearer
from tests.web.page_words import text_of, words_in
from tests.web.recorded_flink import VERSIONS, RecordedFlink, recorded_flink

pytestmark = pytest.mark.usefixtures("site")

HOME = "/flink-clusters/prod/"
SECRET = "s3cr3t-of-the-proxy"


@pytest.fixture(params=VERSIONS)
def flink(request: pytest.FixtureRequest) -> Any:
    with recorded_flink(request.param) as flink:
        yield flink


def watched(flink: RecordedFlink, **more: str) -> FlinkCluster:
    place = Place(address=flink.address, **more)
    row = registration.watch(name="prod", place=place, requester="ada", reason="to see it")
    looking.look(row.pk)
    flink.forget_requests()
    return row


def job_page(flink: RecordedFlink) -> str:
    return f"{HOME}jobs/{flink.jid}/"


def test_a_look_keeps_jobs_checkpoints_subtasks_exceptions_and_pressure(
    flink: RecordedFlink,
) -> None:
    watched(flink)

    (cluster,) = queries.clusters()
    assert (cluster.state, cluster.running_count, cluster.problem) == ("RUNNING", 1, "")
    assert cluster.flink_version == flink.bodies["config"]["body"]["flink-version"]
    detail = queries.job_detail("prod", flink.jid, page=1, per_page=50)
    assert detail is not None
    job = detail.job
    assert (job.name, job.shown_state, job.restart_count) == ("counted", "RUNNING", 1)
    assert job.counts.completed == flink.checkpoints["counts"]["completed"]
    said = {each["id"]: each for each in flink.checkpoints["history"]}
    for row in detail.checkpoints.rows[: len(said)]:
        each = said[row.checkpoint_id]
        assert (row.duration_ms, row.state_bytes, row.uploaded_bytes, row.status) == (
            each["end_to_end_duration"],
            each["state_size"],
            each["checkpointed_size"],
            each["status"],
        )
    restored = flink.checkpoints["latest"]["restored"]
    titles = {(event.kind.value, event.title) for event in detail.events}
    assert ("EXCEPTION", "java.lang.IllegalStateException") in titles
    assert ("RESTORED", f"checkpoint {restored['id']}") in titles
    assert [each.level for each in detail.pressure] == ["ok", "ok"]
    assert detail.pressure[0].busy_ratio == 1.0
    assert detail.settings["interval"] == 1000


def test_a_checkpoint_has_the_figures_of_each_subtask_and_a_timeline(flink: RecordedFlink) -> None:
    watched(flink)
    newest = flink.checkpoints["history"][0]["id"]

    detail = queries.checkpoint("prod", flink.jid, newest)

    assert detail is not None
    for index, (_, parts) in enumerate(detail.parts):
        said = flink.bodies[f"subtasks_{index}"]["body"]["subtasks"]
        assert [
            (p.start_delay_ms, p.alignment_ms, p.sync_ms, p.async_ms, p.acknowledged_ms)
            for p in parts
        ] == [
            (
                each["start_delay"],
                each["alignment"]["duration"],
                each["checkpoint"]["sync"],
                each["checkpoint"]["async"],
                each["end_to_end_duration"],
            )
            for each in said
        ]
    assert len(detail.timeline.subtasks) == 4
    assert detail.timeline.slowest is not None


def test_a_look_requests_only_what_has_changed(flink: RecordedFlink) -> None:
    row = watched(flink)
    job = f"/jobs/{flink.jid}"
    while FlinkCheckpoint.objects.filter(has_subtasks=None, status="COMPLETED").exists():
        looking.look(row.pk)
    flink.forget_requests()

    looking.look(row.pk)
    assert flink.requests == ["GET /jobs/overview", f"GET {job}/checkpoints"]

    flink.forget_requests()
    flink.job["last-modification"] += 1
    looking.look(row.pk)
    assert flink.requests == [
        "GET /jobs/overview",
        f"GET {job}",
        f"GET {job}/exceptions?maxExceptions=20",
        f"GET {job}/checkpoints",
        f"GET {job}/checkpoints/config",
    ]

    flink.forget_requests()
    flink.job["state"], flink.job["last-modification"] = "FINISHED", 0
    looking.look(row.pk)
    looking.look(row.pk)
    assert flink.requests[-1] == "GET /jobs/overview"
    assert flink.requests.count(f"GET {job}/checkpoints") == 1


def test_a_look_asks_again_about_a_change_until_flinks_copies_are_current(
    flink: RecordedFlink,
) -> None:
    """Flink answers from copies that are some seconds old."""
    exceptions, detail = flink.bodies["exceptions"]["body"], flink.bodies["job"]["body"]
    newest = exceptions["exceptionHistory"]["entries"][0] | {"exceptionName": "java.lang.Late"}
    row = watched(flink)

    flink.job["last-modification"] = detail["now"]
    looking.look(row.pk)
    exceptions["exceptionHistory"]["entries"].insert(0, newest)
    looking.look(row.pk)
    assert FlinkEvent.objects.filter(title="java.lang.Late").count() == 1

    detail["now"] += SETTLED_AFTER_MS
    looking.look(row.pk)
    flink.forget_requests()
    looking.look(row.pk)
    assert not any("exceptions" in each for each in flink.requests)


def test_more_checkpoints_are_kept_than_the_ten_that_flink_keeps(flink: RecordedFlink) -> None:
    row = watched(flink)
    before = set(FlinkCheckpoint.objects.values_list("checkpoint_id", flat=True))

    for _ in range(6):
        flink.advance(5)
        looking.look(row.pk)

    kept = set(FlinkCheckpoint.objects.values_list("checkpoint_id", flat=True))
    assert before < kept
    assert len(kept) == len(before) + 30
    detail = queries.job_detail("prod", flink.jid, page=2, per_page=10)
    assert detail is not None
    assert (detail.checkpoints.page, len(detail.checkpoints.rows)) == (2, 10)
    assert len(detail.trend.completed) == len(kept) - len(detail.trend.failed)


def test_an_ended_checkpoint_keeps_its_row_after_its_files_are_discarded(
    flink: RecordedFlink,
) -> None:
    row = watched(flink)
    newest = flink.checkpoints["history"][0]
    (point, *_) = queries.points("prod", flink.jid)
    assert (point.checkpoint_id, point.external_path) == (newest["id"], newest["external_path"])

    flink.advance(1)
    newest["status"] = "IN_PROGRESS"
    newest["end_to_end_duration"] = 1
    looking.look(row.pk)

    after = FlinkCheckpoint.objects.get(checkpoint_id=newest["id"])
    assert after.is_discarded
    ids = [each.checkpoint_id for each in queries.points("prod", flink.jid)]
    assert newest["id"] not in ids


def test_the_catalogue_filters_the_points_of_all_jobs_by_its_address(
    flink: RecordedFlink, operator: Client
) -> None:
    row = watched(flink)
    for _ in range(6):
        flink.advance(5)
        looking.look(row.pk)
    flink.bodies["jobs_overview"]["body"]["jobs"].clear()
    looking.look(row.pk)
    newest = flink.checkpoints["history"][0]["id"]
    kept = FlinkCheckpoint.objects.filter(status="COMPLETED").exclude(external_path="")
    gone = kept.filter(is_discarded=True).count()

    words = words_in(text_of(operator, f"{HOME}points/"))
    assert f"{kept.count() - gone} points" in words
    assert "no longer listed" in words
    assert f"file:/data/checkpoints/chk-{newest}" in words
    assert gone > PER_PAGE // 2
    asked = f"{HOME}points/?job={flink.jid}&kind=checkpoint&kept=any&path=CHK-"
    checkpoints = kept.filter(is_savepoint=False, external_path__contains="chk-")
    assert f"{checkpoints.count()} points" in words_in(text_of(operator, asked))
    assert "No point of that kind" in words_in(text_of(operator, f"{asked}{newest}999"))
    assert "Select a valid choice" in words_in(text_of(operator, f"{HOME}points/?job=nothing"))

    caller = bearer(TokenScope.READ)
    api = "/api/flink-clusters/prod/points"
    answered = caller.get(f"{api}?kind=checkpoint&job={flink.jid}").json()
    assert answered[0]["point"]["checkpoint_id"] == newest
    assert (answered[0]["job_name"], answered[0]["is_forgotten"]) == ("counted", True)
    assert len(caller.get(f"{api}?files=deleted").json()) == gone
    assert caller.get(f"{api}?files=maybe").status_code == 422


def test_the_api_lists_jobs_without_fields_for_pages_and_metrics_only(flink: RecordedFlink) -> None:
    watched(flink)

    (job,) = bearer(TokenScope.READ).get("/api/flink-clusters/prod/jobs").json()

    assert (job["jid"], job["shown_state"]) == (flink.jid, "RUNNING")
    assert set(job) == {each.name for each in fields(queries.JobBrief)}


def test_the_catalogue_keeps_its_filter_from_page_to_page(
    flink: RecordedFlink, operator: Client
) -> None:
    row = watched(flink)
    for _ in range(6):
        flink.advance(10)
        looking.look(row.pk)

    first = text_of(operator, f"{HOME}points/?kept=any&kind=checkpoint")

    (older,) = re.findall(r'href="(\?[^"]*page=2)"', first)
    assert "kept=any" in older
    assert "page 2 of 2" in words_in(text_of(operator, f"{HOME}points/{html.unescape(older)}"))


def test_history_survives_the_death_of_the_cluster(operator: Client) -> None:
    with recorded_flink("2.3") as flink:
        row = watched(flink)
        row.refresh_from_db()
        kept, heard_at = FlinkCheckpoint.objects.count(), row.heard_at
    looking.look(row.pk)
    looking.look(row.pk)

    row.refresh_from_db()
    assert (row.heard_at, row.failed_looks) == (heard_at, 2)
    assert row.due_at - timezone.now() > timedelta(seconds=8)
    assert FlinkCheckpoint.objects.count() == kept > 0
    (cluster,) = queries.clusters()
    assert (cluster.state, cluster.needs_attention) == ("STALE", True)
    words = words_in(text_of(operator, job_page(flink)))
    assert "The cluster does not answer" in words
    assert "it was running when the cluster last said so" in words
    assert "It last answered" in words
    newest = FlinkCheckpoint.objects.latest("checkpoint_id").checkpoint_id
    page = text_of(operator, f"{job_page(flink)}checkpoints/{newest}/")
    assert "subtasks acknowledged" in words_in(page)
    assert "does not answer" in words_in(text_of(operator, "/"))


def test_a_job_missing_from_the_cluster_is_marked_as_forgotten_and_kept(
    flink: RecordedFlink, operator: Client
) -> None:
    row = watched(flink)
    kept = FlinkCheckpoint.objects.count()

    jobs = flink.bodies["jobs_overview"]["body"]["jobs"]
    listed = jobs.pop()
    looking.look(row.pk)
    looking.look(row.pk)

    job = FlinkJob.objects.get()
    assert job.forgotten_at is not None
    assert FlinkCheckpoint.objects.count() == kept
    assert FlinkEvent.objects.filter(title="Flink no longer lists the job").count() == 1
    words = words_in(text_of(operator, job_page(flink)))
    assert "The cluster no longer has this job" in words

    jobs.append(listed)
    looking.look(row.pk)
    job.refresh_from_db()
    assert job.forgotten_at is None


def test_a_silent_cluster_is_asked_less_and_less_often() -> None:
    pauses = [pause_after(number).total_seconds() for number in range(1, 9)]

    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


def test_a_malformed_answer_about_checkpoints_does_not_stop_a_look(flink: RecordedFlink) -> None:
    row = watched(flink)
    flink.bodies["checkpoints"]["body"] = {"counts": "many"}
    flink.job["state"] = "RESTARTING"

    assert looking.look(row.pk)

    row.refresh_from_db()
    assert row.problem == ""
    assert FlinkJob.objects.get().state == "RESTARTING"


def test_a_malformed_answer_about_one_job_does_not_stop_the_look_at_another(
    flink: RecordedFlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, broken, answer = watched(flink), "b" * 32, flink.answer
    flink.bodies["jobs_overview"]["body"]["jobs"].append({**flink.job, "jid": broken})
    flink.advance(1)

    def broken_for_one(method: str, target: str, body: Any) -> tuple[int, Any]:
        if target == f"/jobs/{broken}/checkpoints":
            return 200, {"counts": "many"}
        return answer(method, target.replace(broken, flink.jid), body)

    monkeypatch.setattr(flink, "answer", broken_for_one)
    assert looking.look(row.pk)

    asked = [each for each in flink.requests if each.endswith("/checkpoints")]
    assert asked == [f"GET /jobs/{jid}/checkpoints" for jid in (broken, flink.jid)]
    newest = flink.checkpoints["history"][0]["id"]
    assert FlinkCheckpoint.objects.get(checkpoint_id=newest).job.jid == flink.jid
    row.refresh_from_db()
    assert row.problem == ""


def test_one_process_at_a_time_talks_to_a_cluster(flink: RecordedFlink) -> None:
    row = watched(flink)

    with looking.turn_of(row.pk) as turn:
        assert turn is not None
        assert not looking.look(row.pk)
        assert flink.requests == []
        FlinkCluster.objects.update(turn_holder="another")
        rest = FlinkRest(flink.address, {}, before_each=turn.keep)
        with rest, pytest.raises(looking.TurnLost):
            rest.flink_version()
        assert flink.requests == []

    assert not looking.look(row.pk)  # the other worker still holds the turn
    FlinkCluster.objects.update(turn_until=timezone.now() - timedelta(seconds=1))
    assert looking.look(row.pk)
    assert flink.under_way_max == 1
    assert FlinkCluster.objects.get().turn_holder == ""


def test_only_clusters_that_are_due_are_asked(flink: RecordedFlink) -> None:
    watched(flink)

    assert not looking.look_at_due()
    assert flink.requests == []
    FlinkCluster.objects.update(due_at=timezone.now())
    assert not looking.look_at_due()
    assert flink.requests[0] == "GET /jobs/overview"


def test_a_header_authorizes_requests_and_is_shown_nowhere(
    flink: RecordedFlink, admin: Client
) -> None:
    flink.token = SECRET
    given = {"name": "prod", "address": flink.address, "reason": "to see it"}

    refused = admin.post("/watch/flink/", {**given, "header": "Authorization: Bearer wrong"})
    assert refused.status_code == 422
    assert "refuses access (401)" in words_in(refused.content.decode())
    assert "wrong" not in refused.content.decode()
    header = f"Authorization: Bearer {SECRET}"
    assert admin.post("/watch/flink/", {**given, "header": header}).status_code == 302
    looking.look(FlinkCluster.objects.get().pk)

    assert FlinkJob.objects.count() == 1
    pages = [text_of(admin, each) for each in (HOME, job_page(flink), "/")]
    api = bearer(TokenScope.ACT)
    pages += [text_of(api, each) for each in ("/api/flink-clusters", "/api/flink-clusters/prod")]
    pages += [str(each.__dict__) for each in AdminAction.objects.all()]
    assert [SECRET in each for each in pages] == [False] * len(pages)
    assert "asked with a header" in words_in(pages[0])


def test_a_redirect_does_not_get_the_header(flink: RecordedFlink) -> None:
    with recorded_flink("2.3") as other:
        flink.redirects_to = other.address
        with pytest.raises(Rejected, match="is no Flink"):
            watched(flink, header_name="Authorization", header_value=f"Bearer {SECRET}")

        assert other.requests == []


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("ftp://flink:8081", "begins with http:// or https://"),
        ("file:///etc/passwd", "begins with http:// or https://"),
        ("flink:8081", "begins with http:// or https://"),
        ("http://ada:secret@flink:8081", "give a token as a header instead"),
        ("http://flink:8081/?a=b", "leave out what follows"),
        ("http://flink:port", "is no address"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_in_one_sentence(
    admin: Client, address: str, sentence: str
) -> None:
    answer = admin.post("/watch/flink/", {"name": "x", "address": address, "reason": "why"})

    assert answer.status_code == 422
    assert sentence in words_in(answer.content.decode())
    assert not FlinkCluster.objects.exists()


def test_an_address_where_nothing_or_no_flink_answers_is_refused(flink: RecordedFlink) -> None:
    with reserved_port() as port, pytest.raises(Retryable, match="does not answer"):
        registration.watch(
            name="x",
            place=Place(address=f"http://127.0.0.1:{port}"),
            requester="ada",
            reason="why",
        )
    flink.bodies["config"]["body"] = {"hello": "world"}
    with pytest.raises(Rejected, match="is no Flink"):
        watched(flink)
    assert checked_address(" http://flink:8081/proxy/ ") == "http://flink:8081/proxy"
    assert not FlinkCluster.objects.exists()


def test_a_header_is_a_name_and_a_value() -> None:
    assert parsed_header("  ") == ("", "")
    assert parsed_header("X-Key: a b") == ("X-Key", "a b")
    for wrong in ("Bearer x", "X-Key:", ": x", "X Key: x", "X-Key: a\r\nHost: b", "X-Key: ä"):
        with pytest.raises(Rejected, match="Give the header as a name"):
            parsed_header(wrong)


def test_removing_a_cluster_deletes_its_history(flink: RecordedFlink, admin: Client) -> None:
    watched(flink)

    assert admin.post(f"{HOME}remove/", {"reason": "moved"}).status_code == 302

    assert not FlinkCheckpoint.objects.exists()
    assert admin.get(HOME).status_code == 404
    assert flink.requests == []


def test_an_operator_sees_the_cluster_but_may_not_change_it(
    flink: RecordedFlink, operator: Client
) -> None:
    watched(flink)

    for page in (HOME, job_page(flink)):
        assert "Stop watching" not in words_in(text_of(operator, page))
    posts = ("/watch/flink/", f"{HOME}remove/", f"{job_page(flink)}ask/cancel/")
    assert [operator.post(each, {"reason": "x"}).status_code for each in posts] == [403] * 3
    assert [operator.get(each).status_code for each in posts] == [403] * 3
