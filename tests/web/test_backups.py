"""A backup of the control plane, taken while it runs; its restore into an empty installation."""

import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copy

import pytest

from ftdash.embedded.installation import free_port
from tests.new_home import new_home
from tests.polling import wait_until
from tests.web.installations import Installation, Installations

PREPARE = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.web.journals import new_run
new_run()
"""
BACKUP = """
import sys
call_command("backup", sys.argv[1])
"""
WRITER_S = 120.0
WRITE = """
import sqlite3
import sys
from pathlib import Path
from ftdash import errands
from ftdash.accounts.services import record
from ftdash.jobs.models import Request, Run
from ftdash.projection.projector import Projector
from ftdash.requests.services import ask
from pipelines.domain.commands import TriggerCheckpoint
from tests.web.journals import Story

errands.current_app.send_task = lambda *_, **__: None  # there is no broker
home = Path(sys.argv[1])
story, projector, turn = Story(Run.objects.get()).started(), Projector(), 0
projector.run_once()
if connection.vendor == "sqlite":
    # While somebody reads, what is written stays in the log beside the database's file.
    reader = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM jobs_run").fetchone()
while not (home / "enough").exists():
    turn += 1
    key = ask("flights", TriggerCheckpoint(), who="bo", why="to test", request_id=f"turn-{turn}")
    record(who="ada", what="invited", subject=f"person {turn}", reason="a new colleague")
    story.completed(request_id=key)
    projector.run_once()
    story.answered(Request.objects.get(request_id=key))
    projector.run_once()
    (home / "next-turn").write_text(str(turn))
    (home / "next-turn").rename(home / "turn")
story.ended()
projector.run_once()
(home / "rows.json").write_text(json.dumps(all_rows()))
"""
READ = """
import json
from django.apps import apps
from django.core.management import call_command
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection
from ftdash.accounts.models import AdminAction
from ftdash.checkpoints.models import Checkpoint
from ftdash.jobs.models import Request, Run

NOT_FOLDED = ("Pipeline", "Request", "Run", "Heartbeat")


def rows(model, *left_out):
    # Checkpoints get their keys as they come, so rows name them by what their run calls them.
    fields = (
        "checkpoint__sequence" if field.related_model is Checkpoint else field.attname
        for field in model._meta.concrete_fields
    )
    names = [name for name in fields if name not in ("id", *left_out)]
    return sorted(json.dumps(each, cls=DjangoJSONEncoder) for each in model.objects.values(*names))


def all_rows():
    # Returns the rows of each table. Checks that foreign keys and the audit log are whole.
    connection.check_constraints()  # raises if a key leads nowhere
    call_command("audit_log", "verify")  # ends with status 1 if it does not fit
    folded = [
        each
        for label in ("jobs", "checkpoints", "metrics")
        for each in apps.get_app_config(label).get_models()
        if each.__name__ not in NOT_FOLDED
    ]
    found = {each.__name__: rows(each) for each in folded}
    found["Run"] = rows(Run, "version", "observed_at")
    found["Request"] = rows(Request)
    found["AdminAction"] = rows(AdminAction)
    return found
"""
CATCH_UP = """
import sys
from shutil import copytree
from ftdash.projection.projector import Projector

first = all_rows()
copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)
Projector().run_once()
print(json.dumps([first, all_rows()]))
"""


@pytest.mark.slow
def test_a_backup_during_writes_is_whole_and_catches_up_from_the_journals(
    installations: Installations, tmp_path: Path
) -> None:
    old, file = installations("old"), tmp_path / "backup.tar.gz"
    if old.database is None:
        new_home(old.home)

    with old.running(PREPARE + READ + WRITE, str(old.home)) as writer:
        wait_until(lambda: turn_of(old) > 2 or writer.poll() is not None, within_s=WRITER_S)
        before = turn_of(old)
        taken = old.run("manage.py", "backup", str(file))
        after = turn_of(old)
        assert taken.returncode == 0, taken.stderr
        (old.home / "enough").touch()
        assert writer.wait(WRITER_S) == 0
    new = installations("new")
    restored = new.run("manage.py", "restore", str(file))
    assert restored.returncode == 0, restored.stderr

    journals = (str(each.home / "jobs") for each in (old, new))
    first, copied = json.loads(new.python(READ + CATCH_UP, *journals).splitlines()[-1])
    source = json.loads((old.home / "rows.json").read_text())
    newest = len(first["Request"])
    assert before < newest < after, "the backup was not taken while rows were written"
    for name in ("Request", "AdminAction"):
        assert set(copied.pop(name)) < set(source.pop(name))
    assert copied == source
    assert first["Run"] != source["Run"]

    for name in ("secret_key", "installation_id"):
        assert (new.home / name).read_text() == (old.home / name).read_text()
        assert (new.home / name).stat().st_mode & 0o777 == 0o600
    doctor, again = new.commands(("doctor", "--json"), ("restore", str(file)))
    verdicts = {each["part"]: each["verdict"] for each in json.loads(doctor.stdout)}
    assert {verdicts[part] for part in ("database", "migrations", "clock")} == {"well"}
    assert again.returncode == 2
    assert "There is an installation in" in again.stderr


def turn_of(installation: Installation) -> int:
    """Returns the number of the newest turn that the writer has ended."""
    file = installation.home / "turn"
    return int(file.read_text()) if file.exists() else 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("backups")
    installation = Installation(new_home(directory / "old"))
    file = directory / "backup.tar.gz"
    assert "keep it private" in installation.python(PREPARE + BACKUP, str(file))
    return file


@pytest.mark.slow
def test_a_backup_is_private_and_never_replaces_a_file(made: Path) -> None:
    assert made.stat().st_mode & 0o777 == 0o600
    content = made.read_bytes()

    again = Installation(made.parent / "old").run("manage.py", "backup", str(made))

    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert made.read_bytes() == content
    assert sorted(path.name for path in made.parent.iterdir()) == ["backup.tar.gz", "old"]


@pytest.mark.slow
def test_without_an_installation_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    ran = Installation(tmp_path / "home").run("manage.py", "backup", str(tmp_path / "file"))

    assert ran.returncode == 2
    assert "There is no installation" in ran.stderr
    assert not (tmp_path / "file").exists()


@pytest.mark.slow
def test_an_unreachable_database_is_named_with_its_cure(tmp_path: Path) -> None:
    away = Installation(tmp_path / "home", f"postgresql://x@127.0.0.1:{free_port()}/x")
    file = str(tmp_path / "file")

    for ran in away.commands(("backup", file), ("restore", file)):
        assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.args
        assert "It does not answer" in ran.stderr
        assert "correct FTDASH_DATABASE_URL" in ran.stderr


def altered(file: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    with tarfile.open(file, "r:gz") as archive:
        parts = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    parts[name] = change(parts[name])
    with tarfile.open(file, "w:gz") as archive:
        for each, content in parts.items():
            about = tarfile.TarInfo(each)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


def damaged(file: Path) -> None:
    altered(file, "database", lambda content: content[:-1] + bytes([content[-1] ^ 1]))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2000])


def no_archive(file: Path) -> None:
    file.write_text("what?")


def of_a_newer_version(file: Path) -> None:
    altered(file, "manifest.json", lambda text: text.replace(b"0001_initial", b"9001_later"))


def of_another_database(file: Path) -> None:
    altered(file, "manifest.json", lambda text: text.replace(b'"sqlite"', b'"postgresql"'))


def with_a_path_upwards(file: Path) -> None:
    altered(file, "manifest.json", lambda text: text.replace(b'"secret_key"', b'"../secret_key"'))


UNFIT: dict[Callable[[Path], None], str] = {
    damaged: "is damaged: the file database",
    cut: "is no backup of ftdash, or is damaged",
    no_archive: "is no backup of ftdash, or is damaged",
    of_a_newer_version: "newer version of ftdash",
    of_another_database: "holds a postgresql database",
    with_a_path_upwards: "files that no backup has",
    Path.unlink: "There is no file",
}


@pytest.mark.slow
def test_an_unfit_backup_is_refused_in_a_sentence_and_changes_nothing(
    made: Path, tmp_path: Path
) -> None:
    """A refusal that did change something would be named by the next one."""
    files = [Path(copy(made, tmp_path / f"{spoil.__name__}.tar.gz")) for spoil in UNFIT]
    for spoil, file in zip(UNFIT, files, strict=True):
        spoil(file)
    new = Installation(tmp_path / "new")

    refused = new.commands(*(("restore", str(file)) for file in files))

    for ran, sentence in zip(refused, UNFIT.values(), strict=True):
        assert (ran.returncode, ran.stdout) == (2, ""), ran.args
        assert sentence in ran.stderr, ran.args
        assert len(ran.stderr.splitlines()) == 1
    assert read_tables(new.home) == []


def read_tables(home: Path) -> list[str]:
    database = home / "ftdash.sqlite3"
    with closing(sqlite3.connect(database)) as connected:
        return [name for (name,) in connected.execute("select name from sqlite_master")]
