"""Actions on the pages: stored with user and reason, or refused on the page of the request."""

import json
import re
import socket
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.checkpoints.models import LedgerRow
from ftdash.jobs.models import Pipeline, PointInspection, Request, Run
from ftdash.points.services.comparisons import OPEN_MAX
from ftdash.projection.projector import Projector
from pipelines.domain.commands import RequestKind
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest
from pipelines.domain.status import CheckpointKind
from pipelines.flows.page_view_variables import REDIS
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.web.journals import Story, new_run
from tests.web.lineages import gave
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site")

FROM_HTMX = {"HTTP_HX_REQUEST": "true"}
VERDICT = "/pipelines/flights/restore/verdict/"
READING = "/pipelines/flights/restore/reading/"
CONFIRMED = {"reason": "game day", "confirmation": "flights"}
ON_A_RUNNING_ONE = {
    "checkpoint": (RequestKind.CHECKPOINT, {"reason": "before lunch"}),
    "savepoint": (RequestKind.SAVEPOINT, {"reason": "upgrade"}),
    "stop": (RequestKind.STOP_WITH_SAVEPOINT, {"reason": "upgrade"}),
    "cancel": (RequestKind.CANCEL, CONFIRMED),
    "change": (
        RequestKind.CHANGE_SETTINGS,
        {"reason": "it falls behind", "execution.checkpointing.interval": "9 s"},
    ),
    "kill": (RequestKind.KILL_SLOT, {**CONFIRMED, "slot": "1", "moment": "aligning"}),
}


@pytest.mark.parametrize("action", ON_A_RUNNING_ONE)
def test_an_action_stores_requester_and_reason_and_leads_to_its_progress(
    admin: Client, action: str
) -> None:
    running()
    kind, fields = ON_A_RUNNING_ONE[action]

    answer = admin.post(address(action), fields)

    request = Request.objects.get()
    assert (request.kind, request.requester, request.reason) == (kind, "ada", fields["reason"])
    assert answer.status_code == 302
    assert answer["Location"] == f"/pipelines/flights/#request-{request.request_id}"


def test_a_kill_form_passes_on_the_slot_and_the_moment(admin: Client) -> None:
    running()

    admin.post(address("kill"), ON_A_RUNNING_ONE["kill"][1])

    asked = {"slot": "1", "moment": "aligning", "within_s": "600"}
    assert Request.objects.get().command.parameters == asked


@pytest.mark.parametrize("action", ON_A_RUNNING_ONE)
def test_the_form_of_an_action_states_its_consequence(admin: Client, action: str) -> None:
    running()

    form = words_in(admin.get(address(action)).content.decode())

    assert re.search("keeps running|continues|ends|will be replayed|are not kept", form)
    assert "Kept in the audit log" in form


@pytest.mark.parametrize(
    ("action", "what_becomes_of_them"), [("cancel", "are not kept"), ("kill", "will be replayed")]
)
def test_the_form_that_ends_a_run_states_the_cost_in_records(
    admin: Client, action: str, what_becomes_of_them: str
) -> None:
    running()

    form = words_in(admin.get(address(action)).content.decode())

    cost = rf"about [1-9][\d,]* records read since checkpoint 1 {what_becomes_of_them}"
    assert re.search(cost, form)


@pytest.mark.parametrize("action", ["cancel", "kill", "restore", "start"])
def test_an_irreversible_action_needs_the_pipelines_name_typed(
    admin: Client, site: Path, action: str
) -> None:
    fields = {"reason": "why", "confirmation": "flihgts", "slot": "1", "moment": "now"}
    if action in ("restore", "start"):
        fields |= {"path": ended_with_a_point(site), "parallelism": "2"}
    else:
        running()

    answer = admin.post(address(action), fields)

    assert answer.status_code == 422
    assert "The name of this pipeline is flights." in words_in(answer.content.decode())
    assert not Request.objects.exists()


def test_a_start_over_says_what_is_left_behind_and_what_to_choose_instead(admin: Client) -> None:
    story = Story(new_run()).started()
    story.completed(path="/points/1")
    story.tell(gave(story.run, 1)).ended()
    Projector().run_once()

    form = words_in(admin.get(address("start")).content.decode())

    assert "Start over" in words_in(admin.get("/pipelines/flights/").content.decode())
    assert re.search(r"that of checkpoint 1 \(.+ records?\) is left behind", form)
    assert "Output is set aside: 3 rows of delays, committed from " in form
    assert "choose Restore instead" in form


@pytest.mark.parametrize("action", ON_A_RUNNING_ONE)
def test_an_action_without_a_reason_is_refused(admin: Client, action: str) -> None:
    running()

    answer = admin.post(address(action), {**ON_A_RUNNING_ONE[action][1], "reason": "  "})

    assert answer.status_code == 422
    assert "This field is required." in answer.content.decode()
    assert not Request.objects.exists()


def test_the_form_shows_a_refusal_and_keeps_what_was_typed(admin: Client) -> None:
    finished()

    answer = admin.post(address("savepoint"), {"reason": "before the <upgrade>"})

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "flights is not running." in page
    assert 'value="before the &lt;upgrade&gt;"' in page


def test_a_restore_takes_the_chosen_point_and_parallelism(admin: Client, site: Path) -> None:
    path = ended_with_a_point(site)

    fields = {"path": path, "parallelism": "3", "claim_mode": "CLAIM"}
    answer = admin.post(address("restore"), {**CONFIRMED, **fields})

    stored = Request.objects.get(kind=RequestKind.RESTORE)
    assert answer.status_code == 302
    assert stored.command.parameters == {
        "path": path,
        "parallelism": "3",
        "claim-mode": "CLAIM",
        "allow-non-restored-state": "false",
    }
    assert (stored.requester, stored.reason) == ("ada", "game day")


def test_a_restore_takes_changed_settings_and_parameters(admin: Client, site: Path) -> None:
    path = ended_with_a_point(site)
    changed = {
        "settings": "execution.poison-records.policy: quarantine",
        "parameters": "repeat: 2",
    }
    asked = {"path": path, "parallelism": "2", "claim_mode": "NO_CLAIM", **changed}

    verdict = words_in(admin.get(VERDICT, asked).content.decode())
    broken = words_in(admin.get(VERDICT, {**asked, "settings": "no colon"}).content.decode())
    answer = admin.post(address("restore"), {**CONFIRMED, **asked})

    said = "Setting execution.poison-records.policy becomes 'quarantine', for this run and later"
    assert said in verdict
    assert "Parameter repeat becomes '2'" in verdict
    assert "'no colon' has no colon" in broken
    assert answer.status_code == 302
    run = Run.objects.get(number=2)
    assert run.settings["execution.poison-records.policy"] == "quarantine"
    assert run.parameters["repeat"] == "2"


def test_the_replay_form_states_the_number_of_records(admin: Client, site: Path) -> None:
    path = ended_with_a_point(site)
    nothing = admin.get(address("replay")).content.decode()
    quarantine = site / "flights" / "quarantine" / "events"
    quarantine.mkdir(parents=True)
    run = Run.objects.get()
    lines = '{"record": "{}"}\n' * 2
    (quarantine / f"part-{run.run_id}-00000001-0-0.jsonl").write_text(lines)

    form = admin.get(address("replay")).content.decode()
    answer = admin.post(address("replay"), {"reason": "the function is corrected"})

    assert "There is nothing to replay" in nothing
    assert "2 records would go in again." in form
    assert f"<code>{path}</code>" in form
    assert answer.status_code == 302
    stored = Request.objects.get(kind=RequestKind.RESTORE)
    assert stored.command.parameters["replay-quarantine"] == "2 of events"
    assert (stored.requester, stored.reason) == ("ada", "the function is corrected")


def test_a_replay_of_nothing_is_refused_in_the_form(admin: Client, site: Path) -> None:
    ended_with_a_point(site)

    answer = admin.post(address("replay"), {"reason": "again"})

    assert answer.status_code == 422
    assert "There is nothing to replay" in answer.content.decode()
    assert not Request.objects.exists()


@pytest.mark.parametrize("parallelism", ["0", "129"])
def test_a_restore_at_an_impossible_parallelism_is_refused_in_the_form(
    admin: Client, site: Path, parallelism: str
) -> None:
    path = ended_with_a_point(site)

    fields = {"path": path, "parallelism": parallelism, "claim_mode": "NO_CLAIM"}
    answer = admin.post(address("restore"), {**CONFIRMED, **fields})

    page = answer.content.decode()
    assert answer.status_code == 422
    assert f"The parallelism cannot be {parallelism}; choose 1 to 128" in words_in(page)
    assert f'value="{parallelism}"' in page
    assert not Request.objects.exists()


def test_a_restore_offers_the_point_whose_button_was_pressed(admin: Client, site: Path) -> None:
    path = ended_with_a_point(site)

    form = admin.get(address("restore"), {"path": path}).content.decode()

    assert "rescales the pipeline" in form
    assert re.search(rf'<option value="{re.escape(path)}" selected>savepoint 1 of run 1', form)


def test_the_restore_form_preselects_the_recommended_point(admin: Client, site: Path) -> None:
    older, newest = site / "a", site / "b"
    story = Story(new_run()).started()
    for point in (older, newest):
        point.mkdir()
        (point / "manifest.json").write_text("{}")
        story.completed(CheckpointKind.SAVEPOINT, path=str(point))
    fold(story.ended())
    damaged = {"ended_at": timezone.now(), "problem": "a.arrow was altered."}
    PointInspection.objects.create(path=str(newest), moved_at=timezone.now(), **damaged)

    form = admin.get(address("restore")).content.decode()

    assert re.search(
        rf'<option value="{re.escape(str(older))}" selected>savepoint 1 of run 1', form
    )
    assert re.search(rf'<option value="{re.escape(str(newest))}">[^<]*, it was refused<', form)


def test_a_point_of_another_pipeline_whose_files_are_gone_is_marked(
    admin: Client, site: Path
) -> None:
    finished()
    gone = str(site / "gone")
    fold(Story(new_run("other")).started().completed(CheckpointKind.SAVEPOINT, path=gone).ended())

    form = admin.get(address("restore"), {"path": gone}).content.decode()

    assert re.search(r" selected>savepoint 1 of run 1 of other[^<]*, its files are gone<", form)


def test_the_verdict_is_shown_above_the_restore_button(admin: Client, site: Path) -> None:
    path = ended_with_a_point(site)

    page = admin.get(address("restore"), {"path": path}).content.decode()

    assert "It can be restored." in page
    assert "0 files of 0 bytes are there, none of them truncated." in page
    assert page.index("It can be restored.") < page.index('<button class="danger"')


def test_the_verdict_says_how_much_output_is_set_aside(admin: Client, site: Path) -> None:
    asked = {"path": ended_with_a_point(site)}
    unknown = words_in(admin.get(VERDICT, asked).content.decode())
    run = Run.objects.get()
    gave_rows(run, 1)
    none = words_in(admin.get(VERDICT, asked).content.decode())
    gave_rows(run, 2)
    Run.objects.update(last_checkpoint_id=2)

    some = words_in(admin.get(VERDICT, asked).content.decode())

    assert "output came after the point" not in unknown
    assert "No committed output came after the point." in none
    assert "1,200 rows of committed output came after the point: set aside" in some


def test_the_dialog_fetches_the_verdict_and_shows_the_reason_of_a_refusal(
    admin: Client, site: Path
) -> None:
    path = ended_with_a_point(site)
    form = admin.get(address("restore"), {"path": path}, **FROM_HTMX).content.decode()
    asked = {"path": path, "parallelism": "2"}
    possible = words_in(admin.get(VERDICT, asked, **FROM_HTMX).content.decode())
    manifest = Path(path) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])

    refused = words_in(admin.get(VERDICT, asked, **FROM_HTMX).content.decode())

    assert f'hx-get="{VERDICT}"' in form
    assert "It can be restored." in possible
    assert "It cannot be restored." in refused
    assert f"{manifest} is truncated or altered" in refused


@pytest.mark.slow
def test_the_verdict_does_not_wait_for_a_silent_server_and_names_it(
    admin: Client, site: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ended_with_a_point(site)
    Pipeline.objects.update(flow="page_views", parameters={"into": "redis"})
    monkeypatch.setattr("pipelines.connectors.redis.connection.ANSWER_TIMEOUT_S", 600)
    settings.SERVERS_ANSWER_WITHIN_S = 0.3
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv(REDIS, f"redis://127.0.0.1:{port}")

        answer = words_in(admin.get(VERDICT, {"path": path}).content.decode())

    assert "It cannot be restored." in answer
    assert "State, files and sources were not checked, because of this:" in answer
    assert f"the Redis server 127.0.0.1:{port} does not answer" in answer


def test_the_reading_shows_progress_polls_and_can_reverse_the_verdict(
    admin: Client, site: Path
) -> None:
    path = ended_with_a_point(site)
    admin.get(VERDICT, {"path": path})
    PointInspection.objects.update(files_read=3, files=40, bytes_read=1_000_000, bytes=9_000_000)
    under_way = admin.get(READING, {"path": path}).content.decode()
    PointInspection.objects.update(ended_at=timezone.now())
    whole = admin.get(READING, {"path": path}).content.decode()
    PointInspection.objects.update(problem="a.arrow was altered.")

    damaged = admin.get(READING, {"path": path}).content.decode()

    assert "being read: 3 of 40 files, " in words_in(under_way)
    assert 'hx-trigger="load delay:1s"' in under_way
    assert "match their digests" in words_in(whole)
    assert "hx-trigger" not in whole
    assert "✕ a.arrow was altered. ✕ It cannot be restored." in words_in(damaged)


def test_a_verdict_on_a_path_outside_the_storage_says_so_and_reads_nothing(
    admin: Client, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ended_with_a_point(site)
    outside = str(tmp_path_factory.mktemp("outside"))

    answer = words_in(admin.get(VERDICT, {"path": outside}).content.decode())

    assert "outside the configured storage" in answer
    assert not PointInspection.objects.exists()


def test_verifications_under_way_do_not_hold_up_a_restore(admin: Client, site: Path) -> None:
    path, now = ended_with_a_point(site), timezone.now()
    for number in range(OPEN_MAX):
        PointInspection.objects.create(path=f"{number}", moved_at=now)

    answer = words_in(admin.get(VERDICT, {"path": path}).content.decode())

    assert "It can be restored." in answer
    assert "were not read: 4 verifications are under way already;" in answer
    assert not PointInspection.objects.filter(path=path).exists()


@pytest.mark.parametrize("part", ["verdict", "reading"])
def test_an_operator_does_not_get_the_verdict_of_a_restore(
    operator: Client, site: Path, part: str
) -> None:
    ended_with_a_point(site)

    assert operator.get(reverse(part, args=["flights"])).status_code == 403


def test_the_dialog_gets_only_the_form_and_an_event_once_it_is_stored(admin: Client) -> None:
    running()

    form = admin.get(address("savepoint"), **FROM_HTMX)
    refused = admin.post(address("savepoint"), {"reason": ""}, **FROM_HTMX)
    stored = admin.post(address("savepoint"), {"reason": "upgrade"}, **FROM_HTMX)

    assert "<html" not in form.content.decode()
    assert "hx-post" in form.content.decode()
    assert refused.status_code == 422
    assert "<html" not in refused.content.decode()
    told = json.loads(stored["HX-Trigger"])["requestStored"]
    assert stored.status_code == 204
    assert told["requestId"] == Request.objects.get().request_id


def test_the_start_form_asks_for_the_parameters_of_the_flow(admin: Client) -> None:
    page = admin.get(reverse("submit"), {"flow": "flight_delays"}).content.decode()

    assert 'name="parameter-data"' in page
    assert 'name="reason"' in page


def test_an_impossible_start_names_its_problem_and_keeps_what_was_typed(admin: Client) -> None:
    fields = {
        "name": "flights",
        "parallelism": "2",
        "reason": "try it",
        "parameter-data": "/nowhere/at/all",
        "parameter-output": "/tmp/out",
        "parameter-sql": "sqlite:////tmp/out.sqlite",
    }

    answer = admin.post(reverse("submit") + "?flow=flight_delays", fields)

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "/nowhere/at/all" in words_in(page)
    assert 'value="try it"' in page
    assert not Pipeline.objects.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("execution.checkpointing.intervall: 1 s", "execution.checkpointing.interval?"),
        ("execution.checkpointing.interval: soon", "cannot be 'soon'"),
        ("no colon here", "'no colon here' has no colon"),
        ("heartbeat.timeout: 1 s\nheartbeat.timeout: 2 s", "heartbeat.timeout is given twice"),
    ],
)
def test_an_invalid_setting_is_refused_by_name_in_the_form(
    admin: Client, tmp_path: Path, given: str, said: str
) -> None:
    fields = start_fields(tmp_path) | {"settings": given}

    answer = admin.post(reverse("submit") + "?flow=page_view_count", fields)

    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    assert said in words_in(page)
    assert given in page.replace("\r\n", "\n")
    assert not Pipeline.objects.exists()


@pytest.mark.parametrize(
    "given",
    [
        {"parameter-data": "redis://:hunter2@host/0"},
        {"settings": "state.checkpoints.dir: s3://key:hunter2@bucket/x"},
    ],
)
def test_a_password_is_refused_and_not_shown_again(
    admin: Client, tmp_path: Path, given: dict[str, str]
) -> None:
    fields = start_fields(tmp_path) | given

    answer = admin.post(reverse("submit") + "?flow=page_view_count", fields)

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "holds a password" in words_in(page)
    assert "hunter2" not in page
    assert 'value="try it"' in page
    assert not Pipeline.objects.exists()


def test_settings_are_entered_one_per_line(admin: Client, tmp_path: Path) -> None:
    given = "execution.checkpointing.interval: 500 ms\n\n heartbeat.timeout : 5 s "

    admin.post(
        reverse("submit") + "?flow=page_view_count", start_fields(tmp_path) | {"settings": given}
    )

    assert Pipeline.objects.get().settings == {
        "execution.checkpointing.interval": "500 ms",
        "heartbeat.timeout": "5 s",
    }


def test_the_start_form_explains_every_setting(admin: Client) -> None:
    page = words_in(admin.get(reverse("submit")).content.decode())

    for definition in DEFINITIONS:
        assert f"{definition.key} {definition.help} {definition.default or 'not set'}" in page


def start_fields(root: Path) -> dict[str, str]:
    (root / "1.csv").write_text("1,2,1357000000000\n")
    return {
        "name": "views",
        "parallelism": "2",
        "reason": "try it",
        "parameter-data": str(root),
    }


def address(action: str) -> str:
    return reverse("act", args=["flights", action])


def running() -> None:
    fold(Story(new_run()).started().completed().sampled())


def finished() -> None:
    fold(Story(new_run()).started().completed().ended())


def fold(_: Story) -> None:
    Projector().run_once()


def ended_with_a_point(root: Path) -> str:
    """Makes a run stopped with a savepoint; returns the path of the savepoint on disk."""
    run = new_run()
    events = root / "events"
    events.mkdir()
    (events / "1.csv").write_text("1,2,1357000000000\n")
    Pipeline.objects.update(flow="page_view_count", parameters={"data": str(events)})
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        pipeline="page_view_count",
        run_id=RunId(run.run_id),
        attempt=Attempt(1),
        checkpoint_id=CheckpointId(1),
        kind=CheckpointKind.SAVEPOINT,
        trigger_ms=0,
        completed_ms=0,
        parallelism=2,
        max_parallelism=128,
        ancestors=[],
        operator_ids={},
        subtasks=[],
    )
    path = str(root / "flights" / "savepoints" / f"savepoint-{run.run_id}-1")
    FileSystemCheckpointStore([str(root)]).publish(path, manifest)
    fold(Story(run).started().completed(CheckpointKind.SAVEPOINT, path=path).ended())
    return path


def gave_rows(run: Run, checkpoint_id: int) -> None:
    share = {"checkpoint_id": checkpoint_id, "rows": 1200, "digest": None, "tokens": []}
    LedgerRow.objects.create(
        run=run,
        sequence=1000 + checkpoint_id,
        checkpoint_id=checkpoint_id,
        attempt=1,
        at=timezone.now(),
        records_read=checkpoint_id,
        outputs=[{"sink": "counts", "subtask": 0, "share": share}],
    )
