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

from ftdash.accounts import audit_chain, services
from ftdash.accounts.models import AdminAction

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
call_command("migrate", verbosity=0)
from ftdash.accounts.models import AdminAction
for change in (lambda rows: rows.update(who="eve"), lambda rows: rows.delete()):
    try:
        with transaction.atomic():
            change(AdminAction.objects.all())
    except DatabaseError:
        print("refused")
call_command("audit_log", "verify")
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
    *refusals, said = upgraded.stdout.splitlines()
    assert refusals == ["refused", "refused"]
    assert said.startswith("2 entries fit. Newest: ")
