"""Audits requested on the page: stored as a row, carried out by a separate process.

A run has at most one audit under way. A worker starts its process, which writes its findings to the
audit's row. While the process reads, it reports every few seconds that it is alive, and each step
that it takes. If it falls silent, the audit counts as interrupted, and the next request starts
another one.
"""

import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import F
from django.utils import timezone

from ftdash.checkpoints.models import Audit
from ftdash.checkpoints.queries.guarantee import is_silent
from ftdash.errands import Errand, isolated, publish_on_commit
from ftdash.jobs.author_environment import environment_of_authors
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Pipeline, Run
from ftdash.requests.storing import pipeline_named
from pipelines.domain.errors import Rejected
from pipelines.domain.run import RunDirectory

SIGN_OF_LIFE_S = 2.0
FORGOTTEN_AFTER = timedelta(seconds=5)

log = logging.getLogger("ftdash.audits")


def directory_of(job: str, run_id: str | None) -> RunDirectory:
    """Returns the directory of the run, or of the newest run. Raises Rejected if there is none."""
    runs = Run.objects.filter(pipeline__name=job).select_related("pipeline")
    found = runs.filter(run_id=run_id) if run_id else runs.order_by("-created_at", "-pk")
    run = found.first()
    if run is None:
        which = f"run {run_id} of pipeline {job!r}" if run_id else f"run of a pipeline {job!r}"
        raise Rejected(f"There is no {which}; see `manage.py pipeline list`.")
    return run_directory(run)


def start(audit_key: int) -> None:
    """Starts the audit's process. Has no effect if the audit was started already."""
    now = timezone.now()
    waiting = Audit.objects.filter(pk=audit_key, started_at=None, ended_at=None)
    if not waiting.update(started_at=now, moved_at=now, step="starting"):
        return
    row = Audit.objects.select_related("run__pipeline").get(pk=audit_key)
    make_known(row.run)
    with run_directory(row.run).path.joinpath("audit.log").open("ab") as log_file:
        process = subprocess.Popen(
            [*settings.MANAGE_COMMAND, "carry_out", "audit", str(audit_key)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            start_new_session=True,
        )
    # A dead child leaves the process table only after its parent has waited for it.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()


def start_forgotten() -> None:
    """Starts audits whose message never reached a broker."""
    since = timezone.now() - FORGOTTEN_AFTER
    for row in Audit.objects.filter(started_at=None, ended_at=None, created_at__lt=since):
        with isolated(f"The start of audit {row.pk}"):
            start(row.pk)


def carry_out(audit_key: int) -> None:
    """Runs in the audit's process: has the run read and compared, and stores the findings."""
    # These imports load Arrow, which the rest of the control plane does not need.
    from pipelines.audit.audit_process import audit_afresh
    from pipelines.audit.report import sentences

    row = Audit.objects.select_related("run__pipeline").get(pk=audit_key)

    def tell(step: str) -> None:
        Audit.objects.filter(pk=audit_key).update(step=step, moved_at=timezone.now())
        make_known(row.run)

    with signs_of_life(audit_key):
        try:
            report = audit_afresh(
                run_directory(row.run), tell, settings.BASE_DIR, environment_of_authors()
            )
        except Rejected as problem:
            end(row, problem=str(problem))
        except Exception as error:
            end(row, problem=f"It failed with {type(error).__name__}; see audit.log of the run.")
            raise
        else:
            texts = list(sentences(report))
            end(row, report=msgspec.to_builtins(report), sentences=texts)


def end(row: Audit, **found: object) -> None:
    """Only the first end counts: an audit that was declared interrupted may still report."""
    unended = Audit.objects.filter(pk=row.pk, ended_at=None)
    if unended.update(ended_at=timezone.now(), step="", **found):
        make_known(row.run)


def make_known(run: Run) -> None:
    """Increments the pipeline's version, which makes open pages ask again."""
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


INTERRUPTED = "It was interrupted before it had found anything; ask again."


def ask(pipeline: str, requester: str) -> int:
    """Audits the newest run; returns the audit that is under way already, if there is one.

    Raises Rejected if no run was ever started.
    """
    run = pipeline_named(pipeline).runs.order_by("-number").first()
    if run is None:
        raise Rejected(f"{pipeline} has no run yet, so there is nothing to audit.")
    try:
        with transaction.atomic():
            return _ask(run, requester)
    except IntegrityError:  # another request was stored at this moment
        return Audit.objects.get(run=run, ended_at=None).pk


def _ask(run: Run, requester: str) -> int:
    now = timezone.now()
    open_one = Audit.objects.filter(run=run, ended_at=None).first()
    if open_one is not None and not is_silent(open_one, now):
        return int(open_one.pk)
    if open_one is not None:
        end(open_one, problem=INTERRUPTED)
    row = Audit.objects.create(run=run, requester=requester, created_at=now)
    make_known(run)
    publish_on_commit(Errand.START_AUDIT, row.pk)
    return int(row.pk)
