"""Adds authors' packages to the store of this installation, and deletes what nothing needs.

The log says who added or removed which one, or why that was refused. A package stays as long as a
pipeline starts from it, a run of it continues or may still be audited, an upgrade may start it, or
a point that it wrote can be restored. A copy of a point elsewhere is not known here; its package
can be added again.
"""

import tempfile
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from ftdash.accounts.services import record, record_refusal
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.formats import size
from ftdash.jobs.models import TERMINAL_STATUSES, Pipeline, Run, Upgrade
from ftdash.jobs.validation import package_store
from pipelines.domain.errors import Rejected
from pipelines.domain.run import ShippedCode

SWEEPER = "ftdash"
"""The name in the log for removals that no person asked for."""

KEPT_NEW_S = 24 * 3600.0
"""A package that was just added is kept for this long: it may be about to be used."""


def add(path: Path, *, who: str, reason: str) -> ShippedCode:
    """Adds a wheel, or the folder of a package. Raises Rejected."""
    try:
        code = package_store().add(path)
    except Rejected as refusal:
        _log_refusal("tried to add", path.name, who, reason, refusal)
        raise
    _log("added", code, who, reason)
    return code


def upload(
    name: str, size_bytes: int, chunks: Iterable[bytes], *, who: str, reason: str
) -> ShippedCode:
    """Adds a wheel that a browser sent. Only the last part of its name counts. Raises Rejected."""
    most = settings.PACKAGE_BYTES_MAX
    if size_bytes > most:
        refusal = Rejected(
            f"{name} has {size(size_bytes)}, and may have {size(most)}. Add it on the machine"
            " with `ftdash package add`."
        )
        _log_refusal("tried to add", name, who, reason, refusal)
        raise refusal
    with tempfile.TemporaryDirectory(prefix="ftdash-upload-") as directory:
        file = Path(directory) / Path(name).name
        with file.open("wb") as stream:
            stream.writelines(chunks)
        return add(file, who=who, reason=reason)


def remove(given: str, *, who: str, reason: str) -> ShippedCode:
    """Removes the package whose digest begins with `given`.

    Raises Rejected if there is none, or if something needs it; the log then says why.
    """
    try:
        code = _removable(given)
    except Rejected as refusal:
        _log_refusal("tried to remove", given, who, reason, refusal)
        raise
    package_store().remove(code)
    _log("removed", code, who, reason)
    return code


def sweep(*, who: str = SWEEPER, reason: str = "nothing needs it") -> list[ShippedCode]:
    """Deletes all packages that nothing needs, apart from new ones; returns the deleted ones."""
    store, now_s = package_store(), time.time()
    old = [each for each in store.listed() if now_s - store.added_s(each) > KEPT_NEW_S]
    unneeded = [each for each in old if not needed_by(each)]
    for each in unneeded:
        store.remove(each)
        _log("removed", each, who, reason)
    return unneeded


def needed_by(code: ShippedCode) -> str:
    """Returns what needs the package, in words; empty if nothing does."""
    named = {"code__sha256": code.sha256}
    if pipeline := Pipeline.objects.filter(**named).first():
        return f"the pipeline {pipeline.name}, which starts from it"
    audited = timezone.now() - timedelta(days=settings.JOURNAL_RETENTION_DAYS)
    lives = ~Q(status__in=TERMINAL_STATUSES) | Q(ended_at__gt=audited) | Q(ended_at=None)
    if run := Run.objects.filter(lives, **named).first():
        return f"run {run.run_id}, which continues or may still be audited"
    points = Checkpoint.objects.filter(status=CheckpointStatus.COMPLETED, path__isnull=False)
    if point := points.filter(run__code__sha256=code.sha256).first():
        return f"the recovery point {point.path}, which it wrote"
    of_upgrade = Q(new_code__sha256=code.sha256) | Q(old_code__sha256=code.sha256)
    if upgrade := Upgrade.objects.filter(of_upgrade, ended_at=None).first():
        return f"the upgrade of {upgrade.pipeline.name}, which may start it"
    return ""


def _removable(given: str) -> ShippedCode:
    code = package_store().known(given)
    if needed := needed_by(code):
        raise Rejected(f"The package {code.described} stays: it is needed by {needed}.")
    return code


def _log(what: str, code: ShippedCode, who: str, reason: str) -> None:
    subject = f"package {code.package} {code.version}"
    record(who=who, what=what, subject=subject, reason=reason, detail=code.sha256)


def _log_refusal(what: str, name: str, who: str, reason: str, refusal: Rejected) -> None:
    subject = f"package {name}"
    record_refusal(who=who, what=what, subject=subject, reason=reason, refusal=str(refusal))
