"""Upgrades on the pages: the form, the upload of a wheel, each step, and the lineage."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from ftdash import django_hooks
from ftdash.accounts.models import TokenScope
from ftdash.eventlog.queries import EventFilter, Line, LineKind, log_page
from ftdash.jobs.models import Pipeline, Request, RequestPhase, Run, Upgrade, UpgradeStep
from ftdash.points.queries import lineage
from ftdash.projection.projector import Projector
from ftdash.upgrades import services
from pipelines.domain.commands import RestorePipeline
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import ClaimMode
from pipelines.packages.store import CodeStore
from tests.shipped_packages import shop_wheel, wheel
from tests.web.api_callers import bearer
from tests.web.fetching import fetch
from tests.web.journals import Story, new_request, new_run
from tests.web.people import operator_user, signed_in

FORM = "/pipelines/shop/upgrade/"
EVENTS = "/events/"
API = "/api/pipelines/shop/upgrade"
JSON = "application/json"
WHY = {"reason": "a new rule"}


@pytest.fixture
def store(site: Path) -> CodeStore:
    return CodeStore(site)


@pytest.fixture
def old(store: CodeStore, tmp_path: Path) -> ShippedCode:
    """Adds the package that runs."""
    code = store.add(shop_wheel(tmp_path / "1.0"))
    run = new_run("shop", code=as_row(code))
    Pipeline.objects.update(flow="orders", code=as_row(code))
    Story(run).started().completed()
    Projector().run_once()
    return code


def test_the_form_offers_the_packages_of_the_store(
    admin: Client, store: CodeStore, old: ShippedCode, tmp_path: Path
) -> None:
    new = store.add(shop_wheel(tmp_path / "1.1", "1.1"))

    page = admin.get(FORM).content.decode()
    answer = admin.post(FORM, {**WHY, "package": new.sha256})

    assert f'<option value="{new.sha256}">{new.described}</option>' in page
    assert 'enctype="multipart/form-data"' in page
    assert answer.status_code == 302
    command = Request.objects.get().command
    assert command.code == new
    assert (Request.objects.get().requester, Request.objects.get().reason) == ("ada", "a new rule")
    shown = admin.get(reverse("pipeline", args=["shop"])).content.decode()
    assert reverse("upgrade", args=["shop", Request.objects.get().request_id]) in shown


def test_a_wheel_is_uploaded_kept_and_named_in_the_audit_log(
    admin: Client, store: CodeStore, old: ShippedCode, tmp_path: Path
) -> None:
    given = shop_wheel(tmp_path / "1.1", "1.1")

    answer = admin.post(FORM, {**WHY, "wheel": upload(given.read_bytes(), given.name)})

    assert answer.status_code == 302
    request = Request.objects.get()
    assert request.command.code in list(store.listed())
    assert request.command.parameters["to"].startswith("shipped-shop 1.1 (sha256 ")
    (line,) = settings_lines()
    assert (line.actor, line.what, line.outcome, line.why) == (
        "ada",
        f"added package shipped-shop 1.1 ({request.command.code.sha256})",
        "done",
        "a new rule",
    )


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"no archive", "shop-1.0-py3-none-any.whl", "cannot be read as a wheel"),
        (b"text", "shop.txt", "is no wheel: its name does not look like"),
        (b"text", "../../shop.txt", "is no wheel: its name does not look like"),
        (b"x" * 101, "shop-1.0-py3-none-any.whl", "and may have 100 B"),
    ],
)
def test_an_invalid_or_too_large_wheel_is_refused_in_the_form(
    admin: Client,
    store: CodeStore,
    old: ShippedCode,
    settings: Any,
    *,
    content: bytes,
    name: str,
    said: str,
) -> None:
    settings.PACKAGE_BYTES_MAX = 100

    answer = admin.post(FORM, {**WHY, "wheel": upload(content, name)})

    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert list(store.listed()) == [old]
    assert not Request.objects.exists()
    (line,) = settings_lines()
    assert (line.actor, line.why) == ("ada", "a new rule")
    assert line.what == f"tried to add package {Path(name).name}"
    assert line.outcome.startswith("refused: ")
    assert said in line.outcome
    for address in (EVENTS, f"{EVENTS}csv/", f"{EVENTS}json/"):
        assert "tried to add package" in sent(address)


def test_a_form_larger_than_any_package_is_not_read(
    old: ShippedCode, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django reads a form to find its token, before any code checks rights."""
    operator = signed_in(operator_user(), enforce_csrf_checks=True)
    operator.cookies["csrftoken"] = "x" * 32
    settings.PACKAGE_BYTES_MAX = 100
    monkeypatch.setattr(django_hooks, "REST_OF_THE_FORM_BYTES", 100)

    answer = operator.post(FORM, {**WHY, "wheel": upload(b"x" * 1_000, "shop.whl")})

    assert answer.status_code in (400, 413)
    (line,) = settings_lines()
    assert line.actor == "olaf"
    assert line.what.startswith("tried to send a form of ")
    assert line.outcome == "refused: The form is larger than a package may be."


def test_a_too_large_form_of_a_stranger_leaves_no_line_in_the_log(
    old: ShippedCode, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PACKAGE_BYTES_MAX = 100
    monkeypatch.setattr(django_hooks, "REST_OF_THE_FORM_BYTES", 100)

    stranger = Client(enforce_csrf_checks=True)
    stranger.cookies["csrftoken"] = "x" * 32

    answer = stranger.post(FORM, {**WHY, "wheel": upload(b"x" * 1_000, "shop.whl")})

    assert answer.status_code in (302, 400, 403, 413)
    assert settings_lines() == []


def test_either_a_package_or_a_wheel_has_to_be_chosen(
    admin: Client, old: ShippedCode, tmp_path: Path
) -> None:
    given = wheel(tmp_path, {"other/flow.py": ""})
    both = {"package": old.sha256, "wheel": upload(given.read_bytes(), given.name)}

    for values in ({}, both):
        answer = admin.post(FORM, {**WHY, **values})
        assert "Choose a package or a wheel, one of the two." in answer.content.decode()
    assert not Request.objects.exists()


def test_the_page_of_an_upgrade_shows_its_steps_requester_and_reason(
    operator: Client, store: CodeStore, old: ShippedCode, tmp_path: Path
) -> None:
    new = store.add(shop_wheel(tmp_path / "1.1", "1.1"))
    request_id = services.upgrade(pipeline="shop", code=new, requester="ann", **WHY)
    found = services.Checked("", "The state of <a> is gone.", "File flow.py, line 3")
    Upgrade.objects.update(check_tries=1, checked=as_row(found))
    address = reverse("upgrade", args=["shop", request_id])
    before = operator.get(address).content.decode()

    services.carry_on(Upgrade.objects.get().pk)

    page = operator.get(address).content.decode()
    assert "under way" in before
    assert "under way" not in page
    assert "ann asked for it" in page
    assert "a new rule" in page
    assert "The state of &lt;a&gt; is gone." in page
    assert ">File flow.py, line 3</pre>" in page
    assert (Upgrade.objects.get().step, Request.objects.get().phase) == (
        UpgradeStep.ENDED,
        RequestPhase.REJECTED,
    )
    assert operator.get(f"{address}regions/").status_code == 200
    assert operator.get(reverse("upgrade", args=["shop", "none"])).status_code == 404


def test_lineage_shows_what_an_upgrade_changed_and_who_requested_it(
    operator: Client, store: CodeStore, old: ShippedCode, tmp_path: Path
) -> None:
    new = store.add(shop_wheel(tmp_path / "1.1", "1.1"))
    first = Run.objects.get()
    Story(first).ended()
    Projector().run_once()
    second = new_run("shop", code=as_row(new), parent=first, restored_from="/p")
    command = RestorePipeline(
        path="/p", parallelism=2, claim_mode=ClaimMode.NO_CLAIM, allow_non_restored_state=False
    )
    new_request(second, command, requester="ann", reason="upgrade to 1.1: a new rule")
    first.refresh_from_db()
    (last, *others) = reversed(first.vertices)
    Run.objects.filter(pk=second.pk).update(
        vertices=[*others, {**last, "uid": "alarms", "operators": ["alarms"]}]
    )

    (_, run) = lineage("shop") or []

    assert (run.started_by, run.why) == ("ann", "upgrade to 1.1: a new rule")
    assert run.changes == [
        f"code: {old.described} → {new.described}",
        "added: alarms",
        f"dropped: {', '.join(sorted(last['operators']))}",
    ]
    page = operator.get(reverse("lineage", args=["shop"])).content.decode()
    assert "by ann: upgrade to 1.1: a new rule" in page
    assert "added: alarms" in page


def test_a_program_asks_for_an_upgrade_once_and_follows_each_step(
    store: CodeStore, old: ShippedCode, tmp_path: Path
) -> None:
    new = store.add(shop_wheel(tmp_path / "1.1", "1.1"))
    program = bearer(TokenScope.ACT)
    asked = {**WHY, "request_id": "upgrade-7", "package": new.sha256[:8]}

    listed = program.get("/api/packages").json()
    answers = [program.post(API, asked, content_type=JSON) for _ in range(2)]

    assert [each["sha256"] for each in listed] == [old.sha256, new.sha256]
    assert [each.status_code for each in answers] == [202, 202]
    assert [each.json()["request_id"] for each in answers] == ["upgrade-7"] * 2
    upgrade = Upgrade.objects.get()
    assert (upgrade.request.requester, upgrade.request.command.code) == ("token deploy", new)
    followed = program.get(f"{API}s/upgrade-7").json()
    assert followed["steps"][0]["label"] == "check the new code"
    assert (followed["old"], followed["new"]) == (old.described, new.described)
    assert [each["request_id"] for each in program.get(f"{API}s").json()] == ["upgrade-7"]


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("0" * 64, "There is no package here whose sha256 begins with"),
        ("shop.whl", "body.package"),
        ("/srv/shop-1.0-py3-none-any.whl", "body.package"),
        (None, "runs this very package already"),
    ],
)
def test_a_program_starts_only_packages_that_a_person_has_added(
    store: CodeStore, old: ShippedCode, package: str | None, said: str
) -> None:
    asked = {**WHY, "package": package or old.sha256}

    answer = bearer(TokenScope.ACT).post(API, asked, content_type=JSON)

    assert answer.status_code == 422
    assert said in answer.json()["errors"][0]
    assert list(store.listed()) == [old]
    assert not Upgrade.objects.exists()


def test_an_unknown_upgrade_is_not_found(old: ShippedCode) -> None:
    program = bearer(TokenScope.READ)

    assert program.get(f"{API}s/nothing").status_code == 404
    assert program.get("/api/pipelines/nothing/upgrades").status_code == 404
    assert program.post(API, {**WHY, "package": "0" * 8}, content_type=JSON).status_code == 403


def as_row(value: object) -> Any:
    return msgspec.to_builtins(value)


def settings_lines() -> list[Line]:
    return log_page(EventFilter(kind=LineKind.SETTING), None, 50).lines


def sent(address: str) -> str:
    return b"".join(fetch(address)[2]).decode()


def upload(content: bytes, name: str) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content, content_type="application/zip")
