"""The pages of savepoints: found by label, with their history, and careful actions on them."""

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import NoReturn

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.checkpoints.queries import savepoints
from ftdash.errands import Errand
from ftdash.jobs.models import (
    PointComparison,
    PointInspection,
    PointLabel,
    Request,
    RequestPhase,
    Run,
)
from ftdash.points.services import comparisons
from ftdash.points.services.comparisons import ABANDONED_AFTER, OPEN_MAX
from ftdash.points.services.disposal import label_savepoint
from ftdash.projection.projector import Projector, rebuild
from pipelines.domain.commands import RequestKind, TakeSavepoint
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.status import CheckpointKind, ClaimMode, SavepointFormat
from pipelines.points import comparison
from pipelines.points import comparison as points_inspection
from pipelines.points.contents import Limit, ShelfLife
from tests.web.journals import Story, new_request, new_run
from tests.web.page_words import words_in
from tests.web.people import operator_user, signed_in
from tests.web.savepoint_stories import NAME, path_of, stopped_run
from tests.web.sent_errands import catch_errands

pytestmark = pytest.mark.usefixtures("site")

LIST = f"/pipelines/{NAME}/savepoints/"
ONE = f"/savepoints/{NAME}-1-1/"
SINCE = {"from": f"{NAME}-1-1"}


@pytest.fixture(autouse=True)
def asked_of_workers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Publishes at once, as if every transaction of a test were over."""
    monkeypatch.setattr(transaction, "on_commit", lambda act: act())
    return catch_errands(monkeypatch)


def test_before_the_first_savepoint_the_page_says_how_to_take_one(operator: Client) -> None:
    new_run(NAME)

    assert "manage.py pipeline savepoint views" in words(operator.get(LIST))


def test_the_list_shows_requester_reason_and_the_runs_restored_from_each(operator: Client) -> None:
    run = stopped_run(keys=(20, 30))
    native = TakeSavepoint(format=SavepointFormat.NATIVE)
    new_request(run, native, request_id="taken-1", reason="the <upgrade>")
    new_run("copy", restored_from=path_of(run), claim_mode=ClaimMode.CLAIM.value)

    page = words(operator.get(LIST))

    for shown in (
        "2 savepoints taken",
        "savepoint-views-1-2 savepoint 2 of run 1",
        "native 8.00 kB 1,000 records read ann the <upgrade> copy, run 1 claimed",
        "canonical 8.00 kB 2,000 records read not known nobody",
        "not verified since it was written",
    ):
        assert shown in page
    assert page.index("savepoint-views-1-2") < page.index("savepoint-views-1-1")


def test_only_a_savepoint_whose_files_are_gone_is_marked_as_unusable(operator: Client) -> None:
    run = stopped_run(keys=(20, 30))
    shutil.rmtree(path_of(run, 1))

    page = words(operator.get(LIST))

    assert page.count("its manifest cannot be read") == 1
    assert "nothing can be restored from here" in words(operator.get(ONE))


def test_the_list_comes_in_pages(operator: Client) -> None:
    story = Story(new_run(NAME)).started()
    for number in range(1, 28):
        story.completed(CheckpointKind.SAVEPOINT, path=f"/jobs/savepoint-{number}")
    Projector().run_once()

    first, second = words(operator.get(LIST)), words(operator.get(LIST, {"page": 2}))

    assert "page 1 of 2" in first
    assert "savepoint-27" in first
    assert "savepoint-1 savepoint 1 of run 1" not in first
    assert "savepoint-1 savepoint 1 of run 1" in second


def test_a_label_given_with_the_request_becomes_the_savepoints_label(admin: Client) -> None:
    story = Story(new_run(NAME)).started()
    Projector().run_once()

    admin.post(f"/pipelines/{NAME}/savepoint/", {"reason": "why", "label": " <b>before</b> "})
    request = Request.objects.get()
    story.completed(CheckpointKind.SAVEPOINT, request.request_id, path="/jobs/savepoint-1")
    Projector().run_once()

    assert request.command.parameters == {"type": "CANONICAL", "label": "<b>before</b>"}
    assert "&lt;b&gt;before&lt;/b&gt;" in admin.get(LIST).content.decode()
    assert "<b>before</b>" not in admin.get(LIST).content.decode()
    assert words(admin.get(ONE)).count("<b>before</b>") >= 2
    assert "given by ada" in words(admin.get(ONE))
    assert "“<b>before</b>”" in words(admin.get(f"/pipelines/{NAME}/"))


def test_a_label_change_keeps_requester_and_reason_and_survives_a_rebuild(admin: Client) -> None:
    run = stopped_run()
    path = path_of(run)
    PointLabel.objects.create(
        request_id="taken-1", label="Tuesday", labelled_by="bob", labelled_at=run.created_at
    )

    answer = admin.post(
        f"/pipelines/{NAME}/label/", {"path": path, "label": "new", "reason": "clearer"}
    )
    rebuild(Run.objects.get())
    Projector().run_once()

    request = Request.objects.get()
    assert answer.status_code == 302
    assert (request.kind, request.requester, request.reason) == (
        RequestKind.LABEL,
        "ada",
        "clearer",
    )
    assert (request.phase, request.command.parameters) == (
        RequestPhase.SUCCEEDED,
        {"path": path, "label": "new"},
    )
    assert "new" in words(admin.get(LIST))
    assert "Tuesday" not in words(admin.get(LIST))


def test_an_empty_label_removes_the_label(admin: Client) -> None:
    run = stopped_run()
    PointLabel.objects.create(
        request_id="taken-1", label="Tuesday", labelled_by="bob", labelled_at=run.created_at
    )

    admin.post(f"/pipelines/{NAME}/label/", {"path": path_of(run), "label": "", "reason": "wrong"})

    assert "Tuesday" not in words(admin.get(LIST))
    assert "savepoint-views-1-1" in words(admin.get(LIST))


def test_labelling_again_under_the_same_id_is_the_same_request(admin: Client) -> None:
    path = path_of(stopped_run())
    asked = {"pipeline": NAME, "path": path, "requester": "ann", "reason": "why"}

    first = label_savepoint(label="one", request_id="again", **asked)

    assert label_savepoint(label="two", request_id="again", **asked) == first
    assert PointLabel.objects.get().label == "one"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"path": "/elsewhere"}, "has no savepoint"),
        ({"label": "x" * 81}, "81 characters"),
        ({"reason": " "}, "Say why"),
        ({"pipeline": "copy"}, "copy has no savepoint at"),
    ],
)
def test_an_invalid_label_is_refused_and_not_stored(changes: dict[str, str], says: str) -> None:
    given = {"pipeline": NAME, "path": path_of(stopped_run()), "label": "x", "reason": "why"}
    new_run("copy")

    with pytest.raises(Rejected, match=says):
        label_savepoint(requester="ann", **{**given, **changes})

    assert not PointLabel.objects.exists()
    assert not Request.objects.exists()


def test_a_deletion_states_what_is_lost_and_needs_the_savepoints_name(
    admin: Client,
) -> None:
    run = stopped_run(keys=(20, 30))
    new_run("copy", restored_from=path_of(run, 2), status="FINISHED")
    address = f"/pipelines/{NAME}/dispose/"
    fields = {"path": path_of(run, 2), "reason": "room"}

    form = words(admin.get(address, {"path": path_of(run, 2)}))
    refused = admin.post(address, {**fields, "confirmation": NAME})
    granted = admin.post(address, {**fields, "confirmation": "savepoint-views-1-2"})

    for said in (
        "savepoint 2 of run 1 are deleted permanently: 8.00 kB of state after 2,000 records.",
        "1 other point of views can be restored; the nearest older one is savepoint 1, 1,000"
        " records before it.",
        "It is where 1 run began",
    ):
        assert said in form
    assert refused.status_code == 422
    assert "The name of this savepoint is savepoint-views-1-2." in words(refused)
    assert granted.status_code == 302
    assert Request.objects.get().kind == RequestKind.DISPOSE


@pytest.mark.parametrize(
    ("number", "says"),
    [(1, "1 other point of views can be restored, all of them younger."), (2, "")],
)
def test_the_deletion_form_tells_the_oldest_savepoint_from_the_only_one(
    admin: Client, number: int, says: str
) -> None:
    run = stopped_run(keys=(20, 30) if says else (20,))

    form = words(admin.get(f"/pipelines/{NAME}/dispose/", {"path": path_of(run)}))

    assert (says or "Nothing else is left that views could be restored from.") in form


def test_only_a_savepoint_of_the_pipeline_can_be_labelled_or_deleted(
    admin: Client,
) -> None:
    stopped_run()
    for action in ("label", "dispose"):
        fields = {"path": "/etc", "reason": "why", "confirmation": "", "label": "x"}

        answer = admin.post(f"/pipelines/{NAME}/{action}/", fields)

        assert answer.status_code == 422
        assert "views has no savepoint there." in words(answer)
    assert not Request.objects.exists()


def test_an_operator_sees_no_button(operator: Client) -> None:
    stopped_run()

    page = operator.get(ONE)

    assert "data-dialog" not in page.content.decode()
    assert "Verify" not in words(page)
    assert "Acting on it needs the admin role" in words(page)
    assert "Reading them again needs the admin role." in words(page)


def test_an_operator_can_open_a_comparison_but_not_start_one(operator: Client) -> None:
    stopped_run(keys=(20, 60))
    address = f"/savepoints/{NAME}-1-2/compare/"

    page = words(operator.get(address, SINCE))

    assert "These two have not been compared yet." in page
    assert "Comparing it with another one needs the admin role." in page
    assert "csrfmiddlewaretoken" not in operator.get(address).content.decode().split("<main")[1]


def test_a_verification_shows_its_progress_and_keeps_its_result(
    admin: Client,
) -> None:
    stopped_run()

    admin.post(f"{ONE}verify/")
    waiting = admin.get(f"{ONE}verification/").content.decode()
    PointInspection.objects.update(files=2, files_read=1, bytes=2000, bytes_read=1000)
    halfway = words(admin.get(ONE))
    PointInspection.objects.update(files_read=0)
    comparisons.go_on_inspecting(PointInspection.objects.get().pk)

    assert "it waits for the worker" in waiting
    assert 'hx-trigger="load delay:1s"' in waiting
    assert "1 of 2 files, 1.00 kB of 2.00 kB" in halfway
    ended = admin.get(f"{ONE}verification/").content.decode()
    assert "hx-trigger" not in ended
    assert "every digest matches" in ended
    assert "verified" in words(admin.get(LIST))


def test_a_verification_names_the_damaged_file(admin: Client) -> None:
    path = Path(path_of(stopped_run()))
    damaged = sorted(path.glob("*.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")

    admin.post(f"{ONE}verify/")
    comparisons.go_on_inspecting(PointInspection.objects.get().pk)

    assert f"{damaged} was altered: its digest does not match." in words(admin.get(ONE))
    assert "not usable" in words(admin.get(LIST))


def test_the_manifest_downloads_as_it_is_stored(operator: Client) -> None:
    run = stopped_run()

    answer = operator.get(f"{ONE}manifest/")

    assert answer.content == Path(path_of(run), "manifest.json").read_bytes()
    assert json.loads(answer.content)["manifest"]["checkpoint_id"] == 1
    assert answer["Content-Disposition"] == 'attachment; filename="views-1-1-manifest.json"'


def test_the_download_of_a_missing_manifest_reports_the_missing_point(operator: Client) -> None:
    shutil.rmtree(path_of(stopped_run()))

    answer = operator.get(f"{ONE}manifest/", follow=True)

    assert "There is no recovery point at" in words(answer)


def test_the_contents_of_a_savepoint_link_to_its_rows_page_by_page(operator: Client) -> None:
    stopped_run(keys=(60,))

    holds = operator.get(f"{ONE}holds/")
    (address,) = re.findall(r'href="([^"]+/state/[^"]+)"', holds.content.decode())
    first = operator.get(unescape(address))
    (on,) = re.findall(r'id="rows-next" href="([^"]+)"', first.content.decode())
    second = operator.get(f"{ONE}state/{unescape(on)}")

    assert "positions of a source, after 2 records" in words(holds)
    assert "views" in words(holds)
    assert "50 rows on this page; 50 of 60 have been searched so far." in words(first)
    assert "10 rows on this page; 60 of 60 have been searched so far." in words(second)
    assert "No more rows" in words(second)


def test_rows_are_found_by_value_and_an_invalid_value_is_explained(operator: Client) -> None:
    stopped_run(keys=(60,))
    (address,) = re.findall(
        r'href="([^"]+/state/[^"]+)"', operator.get(f"{ONE}holds/").content.decode()
    )
    address = unescape(address)
    (column,) = re.findall(r'<option value="(\w*id)"', operator.get(address).content.decode())

    found = words(operator.get(f"{address}&column={column}&value=33"))
    none = words(operator.get(f"{address}&column={column}&value=77"))
    wrong = words(operator.get(f"{address}&column={column}&value=many"))

    assert f"1 row with {column} “33”; 60 of 60 have been searched" in found
    assert "No row that was searched has this value." in none
    assert f"'many' is no value of the column '{column}'" in wrong


def test_an_htmx_request_gets_only_a_part_of_the_page(operator: Client) -> None:
    stopped_run()

    part = operator.get(f"{ONE}holds/", headers={"HX-Request": "true"}).content.decode()

    assert "<html" not in part
    assert "Operators and their states" in part


def test_a_missing_manifest_is_reported_in_place_of_the_operators(operator: Client) -> None:
    shutil.rmtree(path_of(stopped_run()))

    assert "manifest.json is missing" in words(operator.get(f"{ONE}holds/"))
    assert "manifest.json is missing" in words(operator.get(f"{ONE}state/"))


def test_a_worker_compares_two_savepoints_and_the_result_is_found_again(
    admin: Client, asked_of_workers: list[tuple[str, int]]
) -> None:
    stopped_run(keys=(20, 60))
    address = f"/savepoints/{NAME}-1-2/compare/"

    before = words(admin.get(address, SINCE))
    asked = admin.post(f"{address}start/", SINCE)
    waiting = admin.get(f"{address}progress/", SINCE).content.decode()
    while comparisons.go_on_comparing(PointComparison.objects.get().pk):
        pass
    outcome = admin.get(asked["Location"])
    known = signed_in(operator_user()).get(address)

    assert f'href="?from={NAME}-1-1"' in known.content.decode()
    assert "Compared already" not in before
    assert "These two have not been compared yet" in before
    assert "it waits for the worker" in waiting
    assert 'hx-trigger="load delay:1s"' in waiting
    assert 'hx-trigger="load' not in outcome.content.decode()
    assert asked_of_workers == [(Errand.COMPARE_POINTS, PointComparison.objects.get().pk)]
    for shown in ("20 60 40 0 0 by", "10 of 40 rows that are new", "asked by ada"):
        assert shown in words(outcome)


def test_a_comparison_says_if_two_savepoints_hold_the_same_rows(admin: Client) -> None:
    stopped_run(keys=(20, 20))
    address = f"/savepoints/{NAME}-1-2/compare/"

    admin.post(f"{address}start/", SINCE)
    comparisons.go_on_comparing(PointComparison.objects.get().pk)

    assert "Every state holds the same rows." in words(admin.get(address, SINCE))


def test_a_comparison_continues_in_steps_and_does_nothing_once_it_ended(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "PART_ROWS", 10)
    monkeypatch.setattr(comparisons, "STEP_S", 0.0)
    stopped_run(keys=(20, 60))
    address = f"/savepoints/{NAME}-1-2/compare/"
    admin.post(f"{address}start/", SINCE)
    row = PointComparison.objects.get()

    assert comparisons.go_on_comparing(row.pk)
    halfway = words(admin.get(address, SINCE))
    while comparisons.go_on_comparing(row.pk):
        pass

    assert "1 of 6 parts" in halfway
    assert "20 60 40 0 0 by" in words(admin.get(address, SINCE))
    assert not comparisons.go_on_comparing(row.pk)


def test_a_stalled_comparison_is_sent_to_a_worker_again(
    admin: Client, asked_of_workers: list[tuple[str, int]]
) -> None:
    stopped_run(keys=(20, 60))
    address = f"/savepoints/{NAME}-1-2/compare/"
    admin.post(f"{address}start/", SINCE)
    PointComparison.objects.update(moved_at=timezone.now() - comparisons.STALLED_AFTER * 2)

    for _ in range(2):
        admin.get(f"{address}progress/", SINCE)

    assert asked_of_workers == [(Errand.COMPARE_POINTS, PointComparison.objects.get().pk)] * 2


def test_a_comparison_names_the_damaged_file_and_can_be_started_again(
    admin: Client, asked_of_workers: list[tuple[str, int]]
) -> None:
    run = stopped_run(keys=(20, 60))
    address = f"/savepoints/{NAME}-1-2/compare/"
    damaged = sorted(Path(path_of(run, 2)).glob("*.parquet"))[0]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + b"!")

    admin.post(f"{address}start/", SINCE)
    comparisons.go_on_comparing(PointComparison.objects.get().pk)
    refused = words(admin.get(address, SINCE))
    damaged.write_bytes(whole)
    admin.post(f"{address}start/", SINCE)
    comparisons.go_on_comparing(PointComparison.objects.get().pk)

    assert f"The comparison failed : {damaged}" in refused
    assert "10 of 40 rows that are new" in words(admin.get(address, SINCE))
    assert len(asked_of_workers) == 2


def test_a_savepoint_is_not_compared_with_itself(admin: Client) -> None:
    stopped_run()

    answer = admin.post(f"{ONE}compare/start/", {"from": f"{NAME}-1-1"}, follow=True)

    assert "this one is compared with itself" in words(answer)
    assert "has no other savepoint to compare with" in words(answer)
    assert not PointComparison.objects.exists()


def test_a_comparison_that_may_not_read_a_point_ends_with_the_reason(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run(keys=(20, 60))
    address = f"/savepoints/{NAME}-1-2/compare/"
    admin.post(f"{address}start/", SINCE)
    row = PointComparison.objects.get()
    monkeypatch.setattr(comparisons, "roots", lambda: ["/elsewhere"])

    follows = comparisons.go_on_comparing(row.pk)
    page = admin.get(address, SINCE)

    assert not follows
    assert "The comparison failed" in words(page)
    assert "/elsewhere" in words(page)
    assert 'hx-trigger="load' not in page.content.decode()


def test_a_comparison_names_what_it_waits_for_resumes_and_gives_up_at_a_limit(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run(keys=(20, 60))
    address = f"/savepoints/{NAME}-1-2/compare/"
    admin.post(f"{address}start/", SINCE)
    key = PointComparison.objects.get().pk

    with monkeypatch.context() as storm:
        storm.setattr(comparisons, "_step", away)
        assert not comparisons.go_on_comparing(key)
        waiting = admin.get(f"{address}progress/", SINCE)
    comparisons.go_on_comparing(key)
    done, row = words(admin.get(address, SINCE)), PointComparison.objects.get()
    since = timezone.now() - comparisons.GIVE_UP_AFTER
    PointComparison.objects.update(ended_at=None, waiting_for="x", waiting_since=since)
    monkeypatch.setattr(comparisons, "_step", away)
    comparisons.go_on_comparing(key)
    given_up = words(admin.get(address, SINCE))

    assert "It cannot continue now and will be tried again: The storage does not answer." in words(
        waiting
    )
    assert 'hx-trigger="load delay:1s"' in waiting.content.decode()
    assert "10 of 40 rows that are new" in done
    assert (row.waiting_for, row.waiting_since) == ("", None)
    assert "The comparison failed : It could not continue for 5 min: The storage does" in given_up


def test_a_verification_names_what_it_waits_for_and_ends_outside_the_storage(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run()
    admin.post(f"{ONE}verify/")
    key = PointInspection.objects.get().pk

    with monkeypatch.context() as storm:
        storm.setattr(points_inspection, "inspect", away)
        assert not comparisons.go_on_inspecting(key)
        waiting = words(admin.get(ONE))
    monkeypatch.setattr(comparisons, "roots", lambda: ["/elsewhere"])
    assert not comparisons.go_on_inspecting(key)

    assert "It cannot continue now and will be tried again: The storage does not answer." in waiting
    assert "/elsewhere" in words(admin.get(ONE))
    assert PointInspection.objects.get().ended_at is not None


def test_the_number_of_comparisons_and_verifications_under_way_is_limited(
    admin: Client,
) -> None:
    stopped_run(keys=(20, 60))
    now, compare = timezone.now(), f"/savepoints/{NAME}-1-2/compare/start/"
    for number in range(OPEN_MAX):
        PointComparison.objects.create(left=f"{number}", right="x", asked_at=now, moved_at=now)
        PointInspection.objects.create(path=f"{number}", moved_at=now)

    compared = words(admin.post(compare, SINCE, follow=True))
    verified = words(admin.post(f"{ONE}verify/", follow=True))
    PointComparison.objects.filter(left="0").update(ended_at=now)
    PointInspection.objects.filter(path="0").update(moved_at=now - ABANDONED_AFTER)
    admin.post(compare, SINCE)
    admin.post(f"{ONE}verify/")

    assert "4 comparisons are under way already; ask again when one has ended." in compared
    assert "4 verifications are under way already; ask again when one has ended." in verified
    assert PointComparison.objects.count() == PointInspection.objects.count() == OPEN_MAX + 1


def test_the_page_shows_the_shelf_life_of_a_savepoint_with_the_reason(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run()
    day_ms = 86_400_000

    nothing = words(operator.get(f"{ONE}shelf-life/"))
    later = round(timezone.now().timestamp() * 1000) + day_ms
    limits = [Limit(later, "Kafka forgets."), Limit(later + day_ms, "So does the other.")]
    known = ShelfLife([], limits, ["How long the third keeps it is not known."])
    monkeypatch.setattr(savepoints, "shelf_life_of", lambda _: known)
    limited = words(operator.get(f"{ONE}shelf-life/"))
    monkeypatch.setattr(
        savepoints, "shelf_life_of", lambda _: ShelfLife([], [Limit(day_ms, "It is old.")], [])
    )
    passed = words(operator.get(f"{ONE}shelf-life/"))

    assert "No limit is known." in nothing
    assert "Its files are kept until a person deletes them." in nothing
    assert re.search(r"Restorable until [-0-9: ]+ UTC , because of this: Kafka forgets\.", limited)
    assert re.search(r"And from [-0-9: ]+ UTC on: So does the other\.", limited)
    assert "How long the third keeps it is not known." in limited
    assert "Restorable now, but not for certain since 1970-01-02 00:00:00 UTC" in passed


def test_the_page_names_what_ended_the_shelf_life_of_a_savepoint(operator: Client) -> None:
    run = stopped_run()
    new_run("copy", restored_from=path_of(run), claim_mode=ClaimMode.CLAIM.value)
    next(Path(run.parameters["data"]).glob("0.csv")).unlink()

    gone = words(operator.get(f"{ONE}shelf-life/"))
    shutil.rmtree(path_of(run))
    unreadable = words(operator.get(f"{ONE}shelf-life/"))

    assert "It cannot be restored now." in gone
    assert "belong to the run that has claimed it" in gone
    assert "How long it can be restored is unknown" in unreadable


def test_a_savepoint_is_restored_into_another_pipeline_after_a_verdict(
    admin: Client,
) -> None:
    run, other = stopped_run(), stopped_run("copy", keys=())
    label_savepoint(
        pipeline=NAME, path=path_of(run), label="before 2.0", requester="ann", reason="why"
    )

    page = words(admin.get(ONE))
    look = admin.get(f"{ONE}restore/", {"into": "copy"}, follow=True)
    fields = {"path": path_of(run), "parallelism": "2", "reason": "trial"}
    unconfirmed = admin.post("/pipelines/copy/restore/", {**fields, "confirmation": NAME})
    admin.post("/pipelines/copy/restore/", {**fields, "confirmation": "copy"})

    assert "Restore into another pipeline copy" in page
    assert "It can be restored." in words(look)
    assert "before 2.0: savepoint 1 of run 1 of views" in words(look)
    assert unconfirmed.status_code == 422
    restored = other.pipeline.runs.get(number=2)
    assert (restored.restored_from, restored.parent) == (path_of(run), run)
    assert "copy, run 2" in words(admin.get(LIST))


def test_a_point_that_no_run_has_written_cannot_be_chosen_for_a_restore(
    admin: Client, site: Path
) -> None:
    stopped_run()

    fields = {"path": str(site), "parallelism": "2", "reason": "x", "confirmation": NAME}
    answer = admin.post(f"/pipelines/{NAME}/restore/", fields)

    assert answer.status_code == 422
    assert "Select a valid choice" in words(answer)


def test_a_restore_needs_an_existing_pipeline_and_the_admin_role(
    admin: Client, operator: Client
) -> None:
    stopped_run()

    assert admin.get(f"{ONE}restore/", {"into": "nothing"}).status_code == 404
    assert operator.get(f"{ONE}restore/", {"into": NAME}).status_code == 403


@pytest.mark.parametrize("key", ["nothing", "views-1-7", "views-1-", f"views-1-{'9' * 19}"])
def test_an_unknown_savepoint_is_not_found(operator: Client, key: str) -> None:
    stopped_run()

    assert operator.get(f"/savepoints/{key}/").status_code == 404


def test_a_refresh_carries_the_same_regions_as_the_page(operator: Client) -> None:
    stopped_run()
    for address in (LIST, ONE):
        page = operator.get(address).content.decode()
        regions = operator.get(f"{address}regions/").content.decode()

        expected = re.findall(r'<div id="(region-[\w-]+)"', page)

        assert re.findall(r'<div id="(region-[\w-]+)"', regions) == expected
        assert regions.count("hx-swap-oob") == len(expected) + 1  # and the pulse


def test_the_pipeline_page_links_to_its_savepoints(operator: Client) -> None:
    run = stopped_run()

    assert (
        reverse("savepoints", args=[run.pipeline.name])
        in operator.get(reverse("pipeline", args=[NAME])).content.decode()
    )


def words(answer: object) -> str:
    return words_in(answer.content.decode())  # type: ignore[attr-defined]


def away(*_: object) -> NoReturn:
    raise Retryable("The storage does not answer.")
