"""Checks a whole installation, and says how to cure each problem that it finds.

Every check looks at one part and answers with a `Diagnosis`; none of them repairs anything. A check
that depends on a broken part is skipped, so that one problem gives one finding. The health
addresses in `health` ask the same functions, but do not show the answers.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import msgspec
import redis
from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, NotSupportedError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.crypto import salted_hmac

from ftdash.accounts import company
from ftdash.accounts import queries as accounts
from ftdash.accounts.services import Role
from ftdash.celery import application
from ftdash.deployment.models import KeyMark
from ftdash.embedded.installation import OLDEST_REDIS
from ftdash.formats import age, size
from ftdash.installed_command import CURE_OF_DATABASE, first_line
from ftdash.jobs.answers import Liveness
from ftdash.runs.queries.freshness import Observation, observe
from ftdash.supervision import java
from pipelines.domain.errors import Rejected
from pipelines.storage.roots import ROOTS_VARIABLE

FREE_BYTES_MIN = 2 << 30
"""With less space, one large checkpoint may fill the disk."""

CLOCKS_DIFFER_MAX = timedelta(seconds=2)
REDIS_TIMEOUT_S = 2.0
WORKER_TIMEOUT_S = 2.0
KEEPS_EVERYTHING = "noeviction"
MIGRATIONS = "migrations"


class PartState(StrEnum):
    WELL = "well"
    WARNING = "warning"  # it works, but not for long, or not for everyone
    BROKEN = "broken"  # something does not work


class Diagnosis(msgspec.Struct, frozen=True):
    """The finding about one part. `cure` is empty if the part is well."""

    part: str
    verdict: PartState
    finding: str
    cure: str = ""


def well(part: str, finding: str) -> Diagnosis:
    return Diagnosis(part, PartState.WELL, finding)


def broken(part: str, finding: str, cure: str) -> Diagnosis:
    return Diagnosis(part, PartState.BROKEN, finding, cure)


def warning(part: str, finding: str, cure: str) -> Diagnosis:
    return Diagnosis(part, PartState.WARNING, finding, cure)


def sentence(found: Diagnosis) -> str:
    """Returns the part, its finding and its cure on one line, for a process that cannot start."""
    return f"{found.part[:1].upper()}{found.part[1:]}: {found.finding} {found.cure}"


def examine() -> Iterator[Diagnosis]:
    """Yields the diagnoses, each part after those that it depends on."""
    yield home()
    yield secret_key()
    found = database()
    yield found
    if found.verdict is PartState.BROKEN:
        migrated = found
    else:
        migrated = migrations()
        yield migrated
    broker = queue()
    yield broker
    if broker.verdict is not PartState.BROKEN:
        yield worker()
    if migrated.verdict is PartState.WELL:
        yield key_in_use()
        yield clock()
        seen = observe()
        yield beat(seen.reconcile)
        yield projector(seen.projector)
        if seen.projector.is_alive:
            yield journals(seen)
        yield people()
    if company.is_configured() or settings.REMOTE_USER_HEADER:
        yield company_sign_in()
    yield drivers_java()
    yield static_files()
    yield addresses()


def home() -> Diagnosis:
    part, place = "home", settings.FTDASH_HOME
    owner = f"give it to the account that runs ftdash: `chown -R ACCOUNT {place}`."
    if not os.access(place, os.W_OK | os.X_OK):
        return broken(part, f"{place} cannot be written.", f"Mount it for writing, or {owner}")
    free = shutil.disk_usage(place).free
    if free < FREE_BYTES_MIN:
        return warning(
            part,
            f"{size(free)} are free below {place}; {size(FREE_BYTES_MIN)} are the least to have.",
            f"Free some space, keep fewer checkpoints, or let {ROOTS_VARIABLE} name another disk.",
        )
    return well(part, f"{place} can be written; {size(free)} are free.")


def secret_key() -> Diagnosis:
    part, path = "secret key", Path(settings.FTDASH_HOME) / "secret_key"
    if settings.SECRET_KEY_IS_GIVEN:
        return well(part, "It comes from FTDASH_SECRET_KEY, a file or a credential.")
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return broken(part, f"{path}: {error.strerror}.", f"Let this account read {path}.")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(
            part,
            f"Other accounts of this machine can read {path} (mode {mode:o}).",
            f"Run `chmod 600 {path}`, and delete the file if another account may have read it: the"
            " next start makes a new key, and all people sign in again.",
        )
    return well(part, f"Only its owner can read {path}.")


def key_in_use() -> Diagnosis:
    """Checks that the secret key is the one with which `prepare` set this installation up."""
    part = "key in use"
    noted = KeyMark.objects.values_list("digest", flat=True).first()
    if noted is None:
        return well(part, "None was noted; `ftdash prepare` notes the key of this process.")
    if noted != mark_of_key():
        return broken(
            part,
            "The secret key is another one than the database was set up with, so each process would"
            " refuse the sessions of the others.",
            "Give all processes one key (FTDASH_SECRET_KEY, or the file secret_key in the home). If"
            " you have changed it on purpose, run `ftdash prepare --new-key`: all people sign in"
            " again.",
        )
    return well(part, "It is the one that the database was set up with.")


def mark_of_key() -> str:
    """Returns a digest that shows whether two keys are equal, and nothing else about them."""
    return salted_hmac("ftdash.deployment", "mark", algorithm="sha256").hexdigest()


def database() -> Diagnosis:
    """Checks that the database answers, and that Django supports its version."""
    part = "database"
    try:
        connection.ensure_connection()
        connection.check_database_version_supported()
    except NotSupportedError as error:
        return broken(part, first_line(error), "Upgrade the server to that version.")
    except DatabaseError as error:
        return broken(
            part,
            f"It does not answer: {first_line(error)}",
            CURE_OF_DATABASE,
        )
    if connection.vendor == "sqlite":
        return well(part, "SQLite in the home, which serves one machine.")
    return well(part, f"{connection.display_name} answers.")


def migrations() -> Diagnosis:
    part = MIGRATIONS
    executor = MigrationExecutor(connection)
    if newer := newer_migrations(executor.loader, executor.loader.applied_migrations or ()):
        return of_newer_version(newer[0])
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        return broken(
            part,
            f"{len(missing)} migrations are missing; the first is {missing[0][0]}.",
            "Stop the services, run `ftdash prepare`, and start them again.",
        )
    return well(part, "The tables are those of this version.")


def of_newer_version(migration: tuple[str, str]) -> Diagnosis:
    return broken(
        MIGRATIONS,
        f"The tables are those of a newer version, which has {'.'.join(migration)}.",
        "Install that version; with it, `ftdash prepare --as-in BACKUP` brings the tables back to"
        " those of an older one.",
    )


def newer_migrations(
    loader: MigrationLoader, applied: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Returns the migrations in `applied` of our tables that this version does not know."""
    replaced = {old for each in loader.disk_migrations.values() for old in each.replaces}
    ours = {config.label for config in apps.get_app_configs()}
    unknown = set(applied) - set(loader.disk_migrations) - replaced
    return sorted(each for each in unknown if each[0] in ours)


def clock(at_most: timedelta = CLOCKS_DIFFER_MAX) -> Diagnosis:
    """Compares the clock of this machine with that of the database server.

    If the database is a file, compares it with the clock of Redis.
    """
    part = "clock"
    if connection.vendor == "sqlite":
        return _clock_of_redis(part, at_most)
    rows = MigrationRecorder.Migration.objects.annotate(there=Now())
    began = timezone.now()
    there: datetime = rows.values_list("there", flat=True)[0]
    return _clocks(part, "the database server", (began, there, timezone.now()), at_most)


def _clock_of_redis(part: str, at_most: timedelta) -> Diagnosis:
    began = timezone.now()
    try:
        with _redis() as client:
            seconds, microseconds = client.time()
    except redis.RedisError:
        return well(part, "The database is in this machine.")
    there = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)
    return _clocks(part, "Redis", (began, there, timezone.now()), at_most)


def _clocks(
    part: str, whose: str, times: tuple[datetime, datetime, datetime], at_most: timedelta
) -> Diagnosis:
    """`times` are the time here before the question, the time there, and the time here after it."""
    began, there, ended = times
    apart = max(began - there, there - ended, timedelta(0))
    if apart > at_most:
        return broken(
            part,
            f"The clock of this machine is {apart.total_seconds():.0f} s apart from that of"
            f" {whose}.",
            "Let a time service (chrony, systemd-timesyncd) set both clocks.",
        )
    return well(part, f"It agrees with that of {whose}.")


def _redis() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        decode_responses=True,
    )


def queue() -> Diagnosis:
    """The message omits the address of Redis, which may hold a password."""
    part = "Redis"
    with _redis() as client:
        try:
            version = client.info("server")["redis_version"]
            policy = client.info("memory").get("maxmemory_policy", KEEPS_EVERYTHING)
        except redis.AuthenticationError:
            return broken(part, "It refuses the password.", "Correct FTDASH_REDIS_URL.")
        except redis.RedisError as error:
            return broken(
                part,
                f"It does not answer ({type(error).__name__}).",
                "Start it, or correct FTDASH_REDIS_URL. Pipelines keep running; requests wait.",
            )
    oldest = ".".join(map(str, OLDEST_REDIS))
    if tuple(int(number) for number in version.split(".")[:2]) < OLDEST_REDIS:
        return broken(part, f"Version {version} is too old.", f"Upgrade it to {oldest} or newer.")
    if policy != KEEPS_EVERYTHING:
        return warning(
            part,
            f"It may drop messages when its memory is full (maxmemory-policy {policy}).",
            "Set `maxmemory-policy noeviction`.",
        )
    return well(part, f"Version {version} answers.")


def worker() -> Diagnosis:
    part = "worker"
    answers = application.control.ping(timeout=WORKER_TIMEOUT_S)
    if not answers:
        return broken(
            part,
            f"No worker answered within {WORKER_TIMEOUT_S:g} s.",
            "Start it: `systemctl start ftdash-worker`.",
        )
    return well(part, f"{len(answers)} answered.")


def beat(seen: Liveness) -> Diagnosis:
    """Beat sends the rounds that a worker carries out; each round writes the row."""
    return _alive("beat", seen, "Start it: `systemctl start ftdash-beat ftdash-worker`.")


def projector(seen: Liveness) -> Diagnosis:
    return _alive("projector", seen, "Start it: `systemctl start ftdash-projector`.")


def journals(seen: Observation) -> Diagnosis:
    """Checks that the projector, which is alive, has read what pipelines have reported."""
    part, since = "journals", seen.projector.unread_since
    lag_s = 0.0 if since is None else (seen.now - since).total_seconds()
    if lag_s > settings.PROJECTOR_LAG_MAX_S:
        allowed = age(1000 * settings.PROJECTOR_LAG_MAX_S)
        finding = (
            f"The projector has not read an event that is {age(1000 * lag_s)} old"
            f" (allowed: {allowed})."
        )
        return broken(
            part,
            finding,
            "Read the log of the projector: `journalctl -u ftdash-projector`. Give it more"
            " processor time, or the journals a faster disk.",
        )
    if seen.projector.note:
        return warning(
            part,
            seen.projector.note,
            "Read the log of the projector: `journalctl -u ftdash-projector`. If a projection has"
            " stopped, cure its cause, such as by an upgrade, and run `ftdash projector --rebuild"
            " RUN_ID`.",
        )
    return well(part, "The projector has read them.")


def _alive(part: str, seen: Liveness, cure: str) -> Diagnosis:
    if not seen.is_alive:
        return broken(part, seen.note or "It has never run.", cure)
    return well(part, "It did its last round just now.")


def people() -> Diagnosis:
    part = "people"
    present = [each for each in accounts.people() if each.is_active]
    if not any(each.role is Role.ADMIN and not each.is_of_company for each in present):
        return warning(
            part,
            "No admin can sign in to this installation with a password.",
            "Run `ftdash createsuperuser`.",
        )
    return well(part, f"{len(present)} can sign in.")


def company_sign_in() -> Diagnosis:
    """Checks that the company's sign-in works, by OpenID Connect or by a header of a proxy."""
    part = "company sign-in"
    if not company.is_configured():
        if not settings.OPERATOR_GROUPS | settings.ADMIN_GROUPS:
            return broken(part, "No group opens ftdash.", "Set FTDASH_ADMIN_GROUPS.")
        return well(
            part, f"{settings.TRUSTED_PROXIES} may say in {settings.REMOTE_USER_HEADER} who asks."
        )
    try:
        company.probe()
    except company.Unwell as unwell:
        finding, _, cure = str(unwell).partition("; ")
        return broken(part, f"{finding}.", cure[:1].upper() + cure[1:])
    return well(part, f"{settings.OIDC_ISSUER} answers and accepts the secret of ftdash.")


def drivers_java() -> Diagnosis:
    try:
        return well("Java", java.describe())
    except Rejected as refusal:
        return broken("Java", str(refusal), "Install it on the machine of the worker.")


def static_files() -> Diagnosis:
    part, manifest = "static files", Path(settings.STATIC_ROOT) / "staticfiles.json"
    if not manifest.is_file():
        return broken(part, f"{manifest} is missing.", "Run `ftdash prepare`.")
    return well(part, f"They are in {settings.STATIC_ROOT}.")


def addresses() -> Diagnosis:
    part = "addresses"
    if settings.DEBUG:
        return broken(part, "FTDASH_DEBUG shows source code on error pages.", "Unset it.")
    if "*" in settings.ALLOWED_HOSTS:
        return warning(
            part,
            "The dashboard answers to every host name.",
            "Let FTDASH_ALLOWED_HOSTS list the names that people use.",
        )
    is_open = set(settings.ALLOWED_HOSTS) - {"127.0.0.1", "localhost", "[::1]"}
    if is_open and not settings.BEHIND_TLS:
        return warning(
            part,
            f"{', '.join(sorted(is_open))} may be reached without TLS.",
            "Put a proxy with TLS in front, and set FTDASH_TLS=1.",
        )
    return well(part, "The dashboard answers to " + ", ".join(settings.ALLOWED_HOSTS) + ".")
