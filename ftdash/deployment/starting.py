"""Checks the conditions for starting a process of an installation; `prepare` establishes them.

`ftdash serve` asks `obstacle` before it becomes the process. So a bad configuration ends each
process in the same way: with the finding of the doctor and its cure, in one line. Later, while a
process works, any of these conditions may fail for a time, and the process continues.
"""

import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from ftdash.deployment import doctor
from ftdash.deployment.backups import read_manifest
from ftdash.deployment.models import KeyMark
from pipelines.domain.errors import Rejected

WEB, WORKER, BEAT, PROJECTOR = NAMES = ("web", "worker", "beat", "projector")
CLOCKS_DIFFER_AT_START_MAX = timedelta(minutes=1)
"""The doctor already reports a smaller difference.

A difference above this is not drift: a worker would take living drivers for dead.
"""

Look = Callable[[], doctor.Diagnosis]


def obstacle(name: str, host: str, port: int) -> doctor.Diagnosis | None:
    """Returns the first finding that keeps process `name` from working, or None if it may start.

    `host` and `port` are those of the web server.
    """
    found = (look() for look in _looks(name, host, port))
    return next((each for each in found if each.verdict is doctor.PartState.BROKEN), None)


def _looks(name: str, host: str, port: int) -> Iterator[Look]:
    yield from (doctor.home, doctor.database, doctor.migrations, doctor.key_in_use)
    yield partial(doctor.clock, CLOCKS_DIFFER_AT_START_MAX)
    if name in (WORKER, BEAT):
        yield doctor.queue
    if name == WEB:
        yield doctor.static_files
        yield partial(_port, host, port)


def _port(host: str, port: int) -> doctor.Diagnosis:
    part = "port"
    try:
        [(family, kind, number, _, place), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind(place)
    except OSError as error:
        return doctor.broken(
            part,
            f"{host}:{port} cannot be listened on: {os.strerror(error.errno or 0)}.",
            "Stop the process that has the port, or give another --host or --port.",
        )
    return doctor.well(part, f"{host}:{port} is free.")


def prepare(*, takes_new_key: bool = False) -> None:
    """Brings tables and static files to this version, and notes the secret key the first time.

    Raises:
        Rejected: the home or the database cannot be used, the tables are those of a newer version,
            or the key is another one than the noted one and `takes_new_key` is False.
    """
    _check(doctor.home, doctor.database)
    if newer := _newer():
        raise Rejected(doctor.sentence(doctor.of_newer_version(newer[0])))
    call_command("migrate", interactive=False)
    call_command("collectstatic", interactive=False, verbosity=0)
    with transaction.atomic():
        if takes_new_key:
            KeyMark.objects.all().delete()
        if not KeyMark.objects.exists():
            KeyMark.objects.create(digest=doctor.mark_of_key(), noted_at=timezone.now())
    _check(doctor.key_in_use)


def go_back_to(backup: Path) -> list[str]:
    """Reverses the migrations that were not yet applied when `backup` was taken.

    Keeps all rows for which the older tables have a place. Returns the names of the migrations.

    Raises:
        Rejected: the database cannot be used, the file is not a backup, or a migration cannot be
            reversed because it kept nothing for that.
    """
    _check(doctor.database)
    wanted = set(read_manifest(backup).migrations)
    before = _applied()
    for app in sorted({app for app, _ in before - wanted}):
        names = sorted(name for each, name in wanted if each == app)
        try:
            call_command("migrate", app, names[-1] if names else "zero", interactive=False)
        except (IrreversibleError, CommandError) as error:
            raise Rejected(
                f"The tables of {app} cannot go back: {error}; restore {backup} into an empty"
                " installation instead."
            ) from error
    return [f"{app}.{name}" for app, name in sorted(before - _applied())]


def _newer() -> list[tuple[str, str]]:
    loader = MigrationLoader(connection)
    return doctor.newer_migrations(loader, loader.applied_migrations or ())


def _applied() -> set[tuple[str, str]]:
    return set(MigrationLoader(connection).applied_migrations or ())


def _check(*looks: Look) -> None:
    for look in looks:
        if (found := look()).verdict is doctor.PartState.BROKEN:
            raise Rejected(doctor.sentence(found))
