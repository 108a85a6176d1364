"""The audit log: append-only in the database, with a chain that reveals changes made in spite."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings as configuration
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction

from ftdash.accounts import audit_chain, queries, services
from ftdash.accounts.models import AdminAction
from ftdash.eventlog.queries import EventFilter, LineKind, log_page
from ftdash.jobs.models import Request, Run
from ftdash.points.services.disposal import label_savepoint
from ftdash.points.services.restore import Restore, dispose, restore
from ftdash.projection.projector import Projector
from ftdash.requests import services as requests
from ftdash.upgrades.services import upgrade
from pipelines.domain.commands import (
    AllowFaults,
    Cancel,
    ChangeSettings,
    KillSlot,
    RunCommand,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.run import ShippedCode
from tests.web.journals import Story, new_request, new_run

UPGRADE = """
import django
django.setup()
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone
call_command("migrate", "accounts", "0006", verbosity=0)
with connection.cursor() as cursor:
    for who in ("ada", "olaf"):
        cursor.execute(
            "INSERT INTO accounts_adminaction (at, who, what, subject, detail, reason, refusal)"
            " VALUES (%s, %s, 'made', 'token ci', '', 'deploys', '')",
            [timezone.now(), who],
        )
call_command("migrate", "accounts", verbosity=0)  # the other tables take longer, and say no more
from ftdash.accounts.models import AdminAction
from ftdash.accounts.queries import verify_log
for change in (lambda rows: rows.update(who="eve"), lambda rows: rows.delete()):
    try:
        with transaction.atomic():
            change(AdminAction.objects.all())
    except DatabaseError:
        print("refused")
found = verify_log()
print(found.entries, found.broken or "fit")
"""

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture
def four_entries() -> list[AdminAction]:
    for name in ("olaf", "olga", "otto"):
        services.record(
            who="ada", what="invited", subject=f"person {name}", reason="a new colleague"
        )
    services.record_refusal(
        who="olaf", what="tried to delete", subject="rule lag", reason="", refusal="not an admin"
    )
    return list(AdminAction.objects.order_by("pk"))


@pytest.fixture
def unprotected(db: None) -> None:
    """Removes the triggers, as a database administrator can."""
    with connection.cursor() as cursor:
        for verb in ("update", "delete"):
            cursor.execute(f"DROP TRIGGER accounts_adminaction_no_{verb}")


def test_each_entry_holds_the_digest_of_the_one_before(four_entries: list[AdminAction]) -> None:
    previous = [each.previous for each in four_entries]

    assert previous == ["", *(each.digest for each in four_entries[:-1])]
    assert verified() == (0, f"4 entries fit. Newest: {four_entries[-1].digest}\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda row: AdminAction.objects.filter(pk=row.pk).update(who="eve"),
        lambda row: AdminAction.objects.filter(pk=row.pk).delete(),
        lambda row: AdminAction.objects.all().delete(),
    ],
)
def test_the_database_refuses_every_change(
    four_entries: list[AdminAction], change: Callable[[AdminAction], object]
) -> None:
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        change(four_entries[1])

    assert verified()[0] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("who", "eve"),
        ("what", "revoked"),
        ("subject", "person eve"),
        ("detail", "as admin"),
        ("reason", "none"),
        ("refusal", "no"),
        ("at", "2001-01-01T00:00:00Z"),
    ],
)
def test_a_changed_entry_is_named(
    four_entries: list[AdminAction], unprotected: None, field: str, value: str
) -> None:
    AdminAction.objects.filter(pk=four_entries[1].pk).update(**{field: value})

    status, said = verified()

    assert status == 1
    assert said.startswith(f"Entry {four_entries[1].pk} (")
    assert "was changed after it was written. The 1 entry before it fit" in said


def test_the_entry_after_a_removed_one_is_named(
    four_entries: list[AdminAction], unprotected: None
) -> None:
    four_entries[1].delete()

    status, said = verified()

    assert (status, said.split(" (")[0]) == (1, f"Entry {four_entries[2].pk}")
    assert "does not follow the entry before it" in said


def test_a_removed_first_entry_is_detected(
    four_entries: list[AdminAction], unprotected: None
) -> None:
    four_entries[0].delete()

    assert verified()[0] == 1


def test_only_a_noted_digest_reveals_entries_cut_off_at_the_end(
    four_entries: list[AdminAction], unprotected: None
) -> None:
    noted = four_entries[-1].digest
    assert verified(noted)[0] == 0

    four_entries[-1].delete()

    assert verified()[0] == 0
    assert verified(noted)[0] == 1
    assert "cut off" in verified(noted)[1]


def test_a_noted_digest_reveals_a_rewritten_log(
    four_entries: list[AdminAction], unprotected: None
) -> None:
    noted = four_entries[2].digest
    rows = list(AdminAction.objects.order_by("pk"))
    previous = audit_chain.BEGINNING
    for row in rows:
        row.who, row.previous = "eve", previous
        row.digest = previous = audit_chain.digest_after(previous, row)
        row.save()

    assert verified()[0] == 0
    assert verified(noted)[0] == 1


def test_the_json_option_prints_the_outcome(four_entries: list[AdminAction]) -> None:
    out = io.StringIO()
    call_command("audit_log", "verify", "--json", stdout=out)

    found = json.loads(out.getvalue())

    assert (found["entries"], found["newest"]) == (4, four_entries[-1].digest)
    assert (found["broken"], found["has_noted"]) == ("", True)


def test_an_empty_log_fits(db: None) -> None:
    assert verified() == (0, "0 entries fit. Newest: none\n")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (TriggerCheckpoint(), "trigger checkpoint"),
        (TakeSavepoint(label="noon"), "savepoint, type=CANONICAL, label=noon"),
        (StopWithSavepoint(drain=True), "stop with savepoint, type=CANONICAL, drain=true"),
        (Cancel(), "cancel"),
        (KillSlot(slot=1), "kill a slot, slot=1, moment=now"),
        (AllowFaults(allowed=False), "allow or forbid faults on purpose, allowed=false"),
        (
            ChangeSettings(settings={"execution.checkpointing.interval": "2 s"}),
            "change settings, execution.checkpointing.interval=2 s",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_stored_request_has_one_entry_in_the_chain(command: RunCommand, told: str) -> None:
    running()

    for _ in range(2):  # repeating an id asks for nothing more
        requests.ask("flights", command, who="bo", why="it hangs", request_id="request-1")

    entry = AdminAction.objects.get()
    assert str(entry) == "bo sent a request to pipeline flights"
    assert (entry.detail, entry.reason) == (f"request-1: {told}", "it hangs")
    assert verified()[0] == 0


def test_a_request_that_cannot_be_stored_leaves_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    running()
    monkeypatch.setattr(requests, "_note", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        requests.ask("flights", Cancel(), who="bo", why="it hangs")

    assert not Request.objects.exists()
    assert not AdminAction.objects.exists()


CODE = ShippedCode(package="shop", version="1.1", file="shop.whl", sha256="0" * 64)
ASKED = {"requester": "bo", "reason": "it hangs"}
OF_BO = {"pipeline": "none", **ASKED}


@pytest.mark.parametrize(
    ("ask", "action"),
    [
        (lambda: requests.ask("none", Cancel(), who="bo", why="it hangs"), "cancel"),
        (lambda: requests.submit_pipeline(name="none", flow="none", **ASKED), "start"),
        (lambda: restore(Restore(pipeline="none", path="/sp"), **ASKED), "restore"),
        (lambda: dispose(path="/sp", **OF_BO), "dispose of a savepoint"),
        (lambda: label_savepoint(path="/sp", label="noon", **OF_BO), "label a savepoint"),
        (lambda: upgrade(code=CODE, **OF_BO), "upgrade"),
    ],
    ids=["ask", "submit", "restore", "dispose", "label", "upgrade"],
)
def test_a_refused_request_has_an_entry_with_the_refusal(
    ask: Callable[[], object], action: str
) -> None:
    with pytest.raises(Rejected) as refused:
        ask()

    entry = AdminAction.objects.get()
    assert str(entry) == "bo tried to send a request to pipeline none"
    assert (entry.detail, entry.reason) == (action, "it hangs")
    assert entry.refusal == str(refused.value)
    assert verified()[0] == 0


def test_each_request_is_one_line_of_the_event_log_and_none_of_the_settings_page() -> None:
    running()
    requests.ask("flights", Cancel(), who="bo", why="it hangs")
    with pytest.raises(Rejected):
        requests.ask("flights", TakeSavepoint(), who="bo", why="to be sure")

    lines = [line for line in log_page(EventFilter(), None, 50).lines if line.actor == "bo"]

    assert [(line.kind, line.what, line.outcome) for line in lines] == [
        (
            LineKind.ACTION,
            "tried to send a request to pipeline flights (savepoint)",
            "refused: flights is being stopped.",
        ),
        (LineKind.ACTION, "asked for: cancel", "waiting for delivery"),
    ]
    assert queries.admin_actions() == []


def test_a_request_without_an_entry_is_named() -> None:
    run = running()
    new_request(run, request_id="before-the-log-had-requests")
    requests.ask("flights", TakeSavepoint(), who="bo", why="to be sure")
    assert verified()[0] == 0

    new_request(run, request_id="past-the-log")

    status, said = verified()
    assert status == 1
    assert said.startswith("1 request has no entry: past-the-log. ")


def running() -> Run:
    run = new_run()
    Story(run).started()
    Projector().run_once()
    run.refresh_from_db()
    return run


def verified(noted: str = "") -> tuple[int, str]:
    """Returns the status of the command and its output."""
    out = io.StringIO()
    try:
        call_command("audit_log", "verify", *(["--noted", noted] if noted else []), stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("vendor", ["sqlite", "postgresql"])
def test_an_upgrade_chains_the_existing_entries_and_then_protects_them(
    vendor: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {**os.environ, "FTDASH_HOME": str(tmp_path)}
    if vendor == "postgresql":
        environment["FTDASH_DATABASE_URL"] = request.getfixturevalue("postgres").url

    upgraded = subprocess.run(
        [sys.executable, "-c", UPGRADE],
        cwd=configuration.BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert upgraded.returncode == 0, upgraded.stderr
    assert upgraded.stdout.splitlines() == ["refused", "refused", "2 fit"]
