"""One file that holds the control plane: its database, its secret key and its id.

A backup is taken while everything runs. SQLite's backup interface and `pg_dump` each copy the
database as of one moment. It does not contain journals, checkpoints and packages, which are in the
job directory: keep that directory on storage with copies of its own. After a restore, the projector
continues where the rows had stopped: it folds the later part of each journal into the restored
database.
"""

import hashlib
import io
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Self, cast

import msgspec
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from ftdash.deployment import doctor
from pipelines.disk.files import FOR_OWNER, replace_atomically
from pipelines.domain.errors import UNDECODABLE, Rejected, check

FORMAT = 1
MANIFEST = "manifest.json"
DATABASE = "database"
OF_HOME = ("secret_key", "installation_id")
FILES = (MANIFEST, DATABASE, *OF_HOME)
BROKEN = (
    *(tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError),
    *UNDECODABLE,
)
"""The errors that reading an archive raises for its bytes."""

MANIFEST_BYTES_MAX = 1 << 20
HEADER_BYTES_MAX = 1 << 16
"""Of a header that gives a long name, or the time of a file."""

SQLITE, POSTGRESQL = "sqlite", "postgresql"
PROGRAM_ENDS_IN_S = 24 * 3600.0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first file of a backup."""

    format: int
    made_at: datetime
    vendor: str  # of the database
    migrations: list[tuple[str, str]]  # app and name, as applied
    sha256: dict[str, str]  # by the name of each other file


def write_backup(path: Path) -> Manifest:
    """Writes the backup; only its owner can read it. `path` holds all of it or does not exist.

    Raises:
        Rejected: `path` exists, its directory does not, the database does not answer, or its own
            program failed.
    """
    if path.exists():
        raise Rejected(f"{path} exists already; give the name of a new file.")
    if not path.parent.is_dir():
        raise Rejected(f"The directory {path.parent} does not exist.")
    _check_database_answers()
    _check_is_installed()
    with tempfile.TemporaryDirectory(prefix=".ftdash-backup-", dir=path.parent) as directory:
        parts = {DATABASE: Path(directory) / DATABASE}
        _dump(parts[DATABASE])
        parts |= {each: settings.FTDASH_HOME / each for each in OF_HOME}
        parts = {name: part for name, part in parts.items() if part.is_file()}
        manifest = Manifest(
            format=FORMAT,
            made_at=timezone.now(),
            vendor=connection.vendor,
            migrations=sorted(MigrationLoader(connection).applied_migrations),
            sha256={name: _digest(part) for name, part in parts.items()},
        )
        unfinished = Path(directory) / "backup"
        _pack(unfinished, manifest, parts)
        try:
            os.link(unfinished, path)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise Rejected(f"{path} was made by another process meanwhile.") from None
    return manifest


def restore_backup(path: Path) -> Manifest:
    """Fills an empty installation; its tables are then those of this version.

    Everything is checked before anything is written.

    Raises:
        Rejected: this is no backup, or is damaged, from a newer version, or of another kind of
            database; or there is an installation here already, or the database does not answer.
    """
    _check_database_answers()
    if _is_installed():
        raise Rejected(
            f"There is an installation in {_place()} already. Restore into an empty one: name"
            " another home by FTDASH_HOME, or another database by FTDASH_DATABASE_URL."
        )
    manifest = read_manifest(path)
    _check_fits(manifest, path)
    with tempfile.TemporaryDirectory() as directory:
        unpack(path, Path(directory))
        _load(Path(directory) / DATABASE)
        for name in manifest.sha256.keys() & set(OF_HOME):
            content = (Path(directory) / name).read_bytes()
            replace_atomically(settings.FTDASH_HOME / name, content, FOR_OWNER)
    call_command("migrate", verbosity=0, interactive=False)
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Raises Rejected if this is not a backup."""
    with _opened(path) as archive:
        return archive.manifest


def unpack(path: Path, directory: Path) -> None:
    """Writes the files that the manifest names. Raises Rejected if one is missing or has changed,
    or if there is no room for it."""
    with _opened(path) as archive:
        archive.unpack(directory)


def _check_database_answers() -> None:
    found = doctor.database()
    if found.verdict is doctor.PartState.BROKEN:
        raise Rejected(f"The database cannot be used. {found.finding} {found.cure}")


def _check_is_installed() -> None:
    if not _is_installed():
        raise Rejected(f"There is no installation in {_place()}, so there is nothing to back up.")


def _is_installed() -> bool:
    table = apps.get_model("jobs.Pipeline")._meta.db_table
    return table in connection.introspection.table_names()


def _place() -> str:
    is_given = bool(settings.DATABASE_URL)
    return "the database of FTDASH_DATABASE_URL" if is_given else str(settings.FTDASH_HOME)


def _check_fits(manifest: Manifest, path: Path) -> None:
    if manifest.vendor != connection.vendor:
        raise Rejected(
            f"{path} holds a {manifest.vendor} database, and this installation uses"
            f" {connection.vendor}; let FTDASH_DATABASE_URL name a {manifest.vendor} database, or"
            " unset it for sqlite."
        )
    loader = MigrationLoader(None, ignore_no_migrations=True)
    newer = doctor.newer_migrations(loader, manifest.migrations)
    if newer:
        raise Rejected(
            f"{path} was made by a newer version of ftdash: this one does not know the migration"
            f" {newer[0][0]}.{newer[0][1]}. Install that version or a newer one."
        )


def _dump(target: Path) -> None:
    if connection.vendor == SQLITE:
        with (
            closing(sqlite3.connect(connection.settings_dict["NAME"])) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
        return
    _run_postgres("pg_dump", ["--format=custom", f"--file={target}"])


def _load(source: Path) -> None:
    connection.close()
    if connection.vendor == SQLITE:
        # Django made an empty file here when it asked for its tables.
        with (
            closing(sqlite3.connect(source)) as copy,
            closing(sqlite3.connect(connection.settings_dict["NAME"])) as target,
        ):
            try:
                copy.backup(target)
            except sqlite3.DatabaseError as error:
                raise Rejected(f"The database in the backup cannot be read: {error}.") from error
        return
    _run_postgres(
        "pg_restore", ["--no-owner", "--exit-on-error", "--single-transaction", str(source)]
    )


def _run_postgres(program: str, options: list[str]) -> None:
    """Runs `program` on Django's database; the password goes through the environment."""
    words, environment = connection.client.settings_to_cmd_args_env(connection.settings_dict, [])
    [_, *where, database] = words
    try:
        ran = subprocess.run(
            [program, *where, f"--dbname={database}", "--no-password", *options],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=PROGRAM_ENDS_IN_S,
            check=False,
        )
    except FileNotFoundError:
        raise Rejected(
            f"{program} was not found; install the client programs of PostgreSQL, at least of the"
            " version of the server."
        ) from None
    if ran.returncode != 0:
        raise Rejected(f"{program} failed: {ran.stderr.strip()}")


def _pack(target: Path, manifest: Manifest, parts: dict[str, Path]) -> None:
    target.touch(FOR_OWNER)
    with target.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            written = msgspec.json.encode(manifest)
            about = tarfile.TarInfo(MANIFEST)
            about.size, about.mode = len(written), FOR_OWNER
            archive.addfile(about, io.BytesIO(written))
            for name, part in parts.items():
                archive.add(part, name)
        file.flush()
        os.fsync(file.fileno())


class _Member(tarfile.TarInfo):
    """Refuses a header that would take much memory: `tarfile` reads a long name as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or (not found.isreg() and found.size > HEADER_BYTES_MAX):
            raise tarfile.ReadError(f"a header has {found.size:,} bytes")
        return found


class _Archive:
    """The files of a backup: a manifest, and the plain files that it names."""

    def __init__(self, archive: tarfile.TarFile, path: Path) -> None:
        self._archive, self._path = archive, path
        found = list(islice(archive, len(FILES) + 1))
        if len(found) > len(FILES) or not all(_is_plain(each) for each in found):
            raise Rejected(f"{path} holds files that no backup has.")
        self._members = {each.name: each for each in found}
        self.manifest = self._read_manifest()

    def unpack(self, directory: Path) -> None:
        for name, digest in self.manifest.sha256.items():
            size, free = self._member(name).size, shutil.disk_usage(directory).free
            if size > free:
                raise Rejected(
                    f"The file {name} in {self._path} has {size:,} bytes, and {directory} has only"
                    f" {free:,} left; free some, or set TMPDIR to a larger place."
                )
            part = directory / name
            with part.open("wb") as copy:
                shutil.copyfileobj(self._open(name), copy)
            if _digest(part) != digest:
                raise Rejected(f"{self._path} is damaged: the file {name} in it has changed.")

    def _read_manifest(self) -> Manifest:
        written = self._open(MANIFEST).read(MANIFEST_BYTES_MAX)
        manifest = msgspec.json.decode(written, type=Manifest)
        if manifest.format != FORMAT or DATABASE not in manifest.sha256:
            raise Rejected(
                f"{self._path} has format {manifest.format}; this version reads {FORMAT}."
            )
        if manifest.sha256.keys() - {DATABASE, *OF_HOME}:
            raise Rejected(f"{self._path} holds files that no backup has.")
        return manifest

    def _member(self, name: str) -> tarfile.TarInfo:
        if name not in self._members:
            raise Rejected(
                f"{self._path} is no backup of ftdash: the file {name} is missing in it."
            )
        return self._members[name]

    def _open(self, name: str) -> IO[bytes]:
        found = self._archive.extractfile(self._member(name))
        check(found is not None, "a plain file has content", name=name)
        return cast(IO[bytes], found)


def _is_plain(member: tarfile.TarInfo) -> bool:
    """A sparse file may claim any size, and a link may lead to itself."""
    return member.isreg() and not member.issparse() and member.name in FILES


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    try:
        with tarfile.open(path, "r:gz", tarinfo=_Member) as archive:
            yield _Archive(archive, path)
    except FileNotFoundError:
        raise Rejected(f"There is no file {path}.") from None
    except BROKEN as error:
        raise Rejected(f"{path} is no backup of ftdash, or is damaged: {error}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
