"""The process of an audit: a worker starts it, and it writes its findings to the audit's row.

While it reads, it reports every few seconds that it lives, and each step that it takes.
"""

import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import OperationalError, connection
from django.db.models import F
from django.utils import timezone

from ftdash.checkpoints.models import Audit
from ftdash.jobs.directories import run_directory
from ftdash.jobs.failure_isolation import isolated
from ftdash.jobs.models import Pipeline, Run
from pipelines.bus.journal_reading import JournalCutShort, UndecodableEvent
from pipelines.domain.errors import Rejected

SIGN_OF_LIFE_S = 2.0
FORGOTTEN_AFTER = timedelta(seconds=5)

log = logging.getLogger("ftdash.audits")


def start(audit_key: int) -> None:
    """Has no effect if the audit was started already."""
    now = timezone.now()
    waiting = Audit.objects.filter(pk=audit_key, started_at=None, ended_at=None)
    if not waiting.update(started_at=now, moved_at=now, step="starting"):
        return
    row = Audit.objects.select_related("run__pipeline").get(pk=audit_key)
    make_known(row.run)
    with run_directory(row.run).path.joinpath("audit.log").open("ab") as log_file:
        process = subprocess.Popen(
            [*settings.MANAGE_COMMAND, "carry_out_audit", str(audit_key)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            start_new_session=True,
        )
    # Waiting is what removes a dead child from the process table.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()


def start_forgotten() -> None:
    """Starts audits whose message never reached a broker."""
    since = timezone.now() - FORGOTTEN_AFTER
    for row in Audit.objects.filter(started_at=None, ended_at=None, created_at__lt=since):
        with isolated(f"The start of audit {row.pk}"):
            start(row.pk)


def carry_out(audit_key: int) -> None:
    """Runs in the audit's process: reads, compares, and stores the findings."""
    # Loads Arrow and the flow, which the rest of the control plane does not need.
    from pipelines.audit.auditor import audit
    from pipelines.audit.report import sentences

    row = Audit.objects.select_related("run__pipeline").get(pk=audit_key)

    def tell(step: str) -> None:
        Audit.objects.filter(pk=audit_key).update(step=step, moved_at=timezone.now())
        make_known(row.run)

    with signs_of_life(audit_key):
        try:
            report = audit(run_directory(row.run), tell)
        except (Rejected, UndecodableEvent, JournalCutShort) as problem:
            end(row, problem=str(problem))
        except Exception as error:
            end(row, problem=f"It failed with {type(error).__name__}; see audit.log of the run.")
            raise
        else:
            told = list(sentences(report))
            end(row, report=msgspec.to_builtins(report), sentences=told)


def end(row: Audit, **found: object) -> None:
    """The first end holds: an audit that was taken for interrupted may still report."""
    unended = Audit.objects.filter(pk=row.pk, ended_at=None)
    if unended.update(ended_at=timezone.now(), step="", **found):
        make_known(row.run)


def make_known(run: Run) -> None:
    """Raises the version, which makes open pages ask again."""
    Pipeline.objects.filter(pk=run.pipeline_id).update(version=F("version") + 1)


@contextmanager
def signs_of_life(audit_key: int) -> Iterator[None]:
    has_ended = threading.Event()

    def beat() -> None:
        while not has_ended.wait(SIGN_OF_LIFE_S):
            try:
                Audit.objects.filter(pk=audit_key).update(moved_at=timezone.now())
            except OperationalError as error:  # the database is locked or away: try next time
                log.warning("The sign of life of audit %s waits: %s", audit_key, error)
        connection.close()

    beating = threading.Thread(target=beat, name="signs-of-life", daemon=True)
    beating.start()
    try:
        yield
    finally:
        has_ended.set()
        beating.join()
