"""Pages and addresses of savepoints, rewinds and state: their text and the required rights."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from ftdash.accounts.models import TokenScope
from ftdash.watching.models import QuerySavepoint, QueryWork, WorkKind, WorkState
from ftdash.watching.services import execution, registration, work
from ftdash.watching.services.registration import Sighting
from tests.structured_directories import Traits, Written, write_query
from tests.web.api_callers import bearer
from tests.web.page_words import text_of, words_in

pytestmark = pytest.mark.usefixtures("site")

HOME = "/watched/orders/"
API = "/api/watched-queries/orders/"


@pytest.fixture
def root(settings: Any, tmp_path: Path) -> Path:
    root = (tmp_path / "checkpoints").resolve()
    root.mkdir()
    settings.WATCH_ROOTS = [str(root)]
    settings.WATCH_SAVEPOINTS = str(tmp_path / "savepoints")
    return root


@pytest.fixture
def made(root: Path) -> Written:
    made = write_query(root / "orders", Traits(is_running=True))
    seen = Sighting(directory=str(made.checkpoint), output=str(made.output))
    registration.watch(name="orders", seen=seen, requester="ada", reason="to see it")
    return made


def carried_out() -> QueryWork:
    """Carries out the newest work as its process would."""
    QueryWork.objects.filter(state=WorkState.WAITING).update(state=WorkState.RUNNING)
    return execution.carry_out(QueryWork.objects.latest("pk").pk)


def taken(admin: Client) -> QuerySavepoint:
    answer = admin.post(f"{HOME}take/", {"label": "friday", "batch": "7", "reason": "a deploy"})
    assert answer.status_code == 302
    row = carried_out()
    assert words_in(text_of(admin, answer.url))
    return QuerySavepoint.objects.get(pk=row.result["savepoint"])


def asked_for(root: Path, **more: str) -> dict[str, Any]:
    return {
        "origin": "batch:7",
        "target": str(root / "fork"),
        "boundaries": "new",
        "output": "new",
        "output_target": str(root / "new-output"),
        "reason": "wrong prices",
        **more,
    }


def test_a_savepoint_is_taken_verified_kept_and_deleted_on_its_pages(
    admin: Client, made: Written
) -> None:
    saved = taken(admin)
    page = f"{HOME}savepoints/{saved.pk}/"

    assert "friday 7" in words_in(text_of(admin, HOME))
    words = words_in(text_of(admin, page))
    assert "Batch 7 of orders, copied with" in words
    assert "✓ As written" in words

    assert admin.post(f"{page}verify/").status_code == 302
    (Path(saved.location) / "commits/7").write_text("v1\n{}")
    carried_out()
    assert "✕ Not as written" in words_in(text_of(admin, page))
    assert "altered" in words_in(text_of(admin, HOME))

    assert admin.post(f"{page}keep/", {"keep-days": "3", "keep-reason": "x"}).status_code == 302
    wrong = admin.post(f"{page}delete/", {"delete-confirmation": "orders", "delete-reason": "x"})
    assert wrong.status_code == 422
    assert "Type the savepoint&#x27;s label, friday" in wrong.content.decode()
    answer = admin.post(f"{page}delete/", {"delete-confirmation": "friday", "delete-reason": "x"})
    assert answer.status_code == 302
    carried_out()
    assert "Its files are deleted" in words_in(text_of(admin, page))


def test_the_manifest_can_be_downloaded(operator: Client, admin: Client, made: Written) -> None:
    saved = taken(admin)

    answer = operator.get(f"{HOME}savepoints/{saved.pk}/manifest/")

    assert answer["Content-Disposition"].startswith("attachment")
    assert json.loads(answer.content)["batch_id"] == 7


def test_a_rewind_shows_the_verdict_before_the_button_and_then_the_line_to_change(
    admin: Client, made: Written, root: Path
) -> None:
    words = words_in(text_of(admin, f"{HOME}rewind/"))
    assert "batch 11 (recommended)" in words
    assert "Exactly the rows that it had; the batches after it are new" in words

    judged = admin.post(f"{HOME}rewind/", asked_for(root)).url
    assert "Rewind into the fork" not in words_in(text_of(admin, judged))
    carried_out()
    words = words_in(text_of(admin, judged))
    assert "✓ This rewind is possible. Nothing has been written yet." in words
    assert "Rewind into the fork" in words
    assert not (root / "fork").exists()

    forked = admin.post(f"{judged}fork/").url
    assert carried_out().state == WorkState.SUCCEEDED
    words = words_in(text_of(admin, forked))
    assert "✓ The fork is ready." in words
    assert f'.option("checkpointLocation", "{root}/fork")' in words
    assert (root / "fork/metadata").exists()


def test_a_refused_rewind_has_no_button(admin: Client, made: Written, root: Path) -> None:
    judged = admin.post(
        f"{HOME}rewind/", asked_for(root, output="same files", output_target="")
    ).url
    carried_out()

    words = words_in(text_of(admin, judged))

    assert "✕ This rewind is refused." in words
    assert "Rewind into the fork" not in words
    admin.post(f"{judged}fork/")
    assert not QueryWork.objects.filter(kind=WorkKind.FORK).exists()


def test_a_forbidden_target_is_reported_in_the_form(
    admin: Client, made: Written, root: Path
) -> None:
    answer = admin.post(f"{HOME}rewind/", asked_for(root, target="/etc/fork"))

    assert answer.status_code == 422
    assert "/etc/fork lies outside the directories that may be watched" in answer.content.decode()


def test_the_verdict_compares_the_plan_of_the_new_code_with_the_checkpoint(
    admin: Client, made: Written, root: Path
) -> None:
    plan = {"format": 1, "spark": "4.3.0", "operators": [{"id": 0, "name": "dedupe"}]}
    for content, message in (
        (json.dumps({**plan, "sources": ["file"]}), "and dedupe in the new code"),
        (json.dumps({**plan, "sources": ["kafka"]}), "Source 0 is file in the checkpoint"),
    ):
        upload = SimpleUploadedFile("plan.json", content.encode())
        judged = admin.post(f"{HOME}rewind/", {**asked_for(root), "plan": upload}).url
        carried_out()
        assert message in words_in(text_of(admin, judged))
    upload = SimpleUploadedFile("plan.json", b"{}")
    answer = admin.post(f"{HOME}rewind/", {**asked_for(root), "plan": upload})
    assert "give the file that `explain`" in answer.content.decode()


def test_rows_and_differences_of_state_are_shown(admin: Client, made: Written) -> None:
    given = {"origin": "batch:7", "other": "batch:11", "operator_id": "0", "store": "default"}
    page = admin.post(f"{HOME}state/", {**given, "reason": "odd counts"}).url
    key = QueryWork.objects.get().pk
    QueryWork.objects.update(state=WorkState.RUNNING)
    rows = [{"key": {"user": "ada"}, "value": {"count": 3}, "partition_id": None}]
    work.end(key, result={"rows": rows, "count": 1, "gained": [], "gained_count": 0})

    words = words_in(text_of(admin, page))

    assert "Only at batch 7 1 row of operator 0, store default." in words
    assert "user ada count 3" in words
    assert "Only at batch 11 0 rows" in words


def test_the_page_shows_progress_and_failure(admin: Client, made: Written) -> None:
    page = admin.post(f"{HOME}take/", {"label": "x", "reason": "y"}).url
    assert "Waits for a worker" in words_in(text_of(admin, page))

    QueryWork.objects.update(state=WorkState.RUNNING, step="copies batch 7", done=3, of=40)
    assert "copies batch 7, 3 of 40 files" in words_in(text_of(admin, page))
    work.end(QueryWork.objects.get().pk, problem="The disk is full.")
    assert "✕ It failed. The disk is full." in words_in(text_of(admin, page))


def posts(key: int, root: Path) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{HOME}take/", {"label": "x", "reason": "y"}),
        (f"{HOME}rewind/", asked_for(root)),
        (f"{HOME}state/", {"origin": "batch:7", "reason": "y"}),
        (f"{HOME}savepoints/{key}/verify/", {}),
        (f"{HOME}savepoints/{key}/keep/", {"keep-reason": "x"}),
        (f"{HOME}savepoints/{key}/delete/", {"delete-confirmation": "friday"}),
        (f"{HOME}works/1/fork/", {}),
    ]


def test_an_operator_sees_the_pages_but_starts_nothing(
    operator: Client, admin: Client, made: Written, root: Path
) -> None:
    saved = taken(admin)
    before = QueryWork.objects.count()

    for address, given in posts(saved.pk, root):
        assert operator.post(address, given).status_code == 403, address

    assert QueryWork.objects.count() == before
    words = words_in(text_of(operator, f"{HOME}savepoints/{saved.pk}/"))
    assert "As written" in words
    assert "Delete" not in words
    assert "Rewind" not in words_in(text_of(operator, HOME))


def test_programs_take_verify_fork_and_delete_savepoints(made: Written, root: Path) -> None:
    client = bearer(TokenScope.ACT)

    def ask(address: str, **given: Any) -> dict[str, Any]:
        body = json.dumps({"reason": "x", **given})
        answer = client.post(f"{API}{address}", body, content_type="application/json")
        assert answer.status_code == 200, answer.content
        key = answer.json()["key"]
        if "state" not in answer.json():
            return dict(answer.json())
        carried_out()
        found: dict[str, Any] = client.get(f"{API}works/{key}").json()
        assert found["state"] == "SUCCEEDED", found["problem"]
        return found

    key = ask("savepoints", label="friday", batch_id=7)["result"]["savepoint"]
    (saved,) = client.get(f"{API}savepoints").json()
    assert (saved["key"], saved["label"]) == (key, "friday")
    assert client.get(f"{API}savepoints/{key}").json()["batch_id"] == 7
    assert ask(f"savepoints/{key}/verification")["result"]["problems"] == []
    assert ask(f"savepoints/{key}/shelf-life", days=3)["keep_until"]
    places = {"target": str(root / "fork"), "output_target": str(root / "new-output")}
    rewind = {"batch_id": 7, "savepoint": key, **places}
    assert ask("verdicts", **rewind)["result"]["is_possible"]
    assert not (root / "fork").exists()
    assert ask("forks", **rewind)["result"]["next_batch"] == 8
    assert (root / "fork/metadata").exists()
    ask(f"savepoints/{key}/deletion", confirmation="friday")

    refused = client.post(
        f"{API}forks",
        json.dumps({"reason": "x", "batch_id": 7, "target": "/elsewhere"}),
        content_type="application/json",
    )
    assert refused.status_code == 422
    assert "lies outside" in refused.json()["errors"][0]
