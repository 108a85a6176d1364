"""Stores requests for a lab, starts them, keeps each lab's output, and ends labs that have died.

A stored request survives an outage of the broker: reconcile starts it later. A lab runs to its end
in its own process, `python -m pipelines.lab`, as on the command line.
"""

import subprocess
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.validation import check_reason
from ftdash.lab.models import UNDER_WAY, Lab, LabState
from pipelines.bus.lease import Owner
from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.lab.options import LabOptions
from pipelines.lab.report import LabReport

KEEPER_START_WITHIN = timedelta(seconds=60)
DIED = "The process that ran it ended without a word; see the log of the worker."
NOT_STARTED = "The process that was to run it did not start; see the log of the worker."


def start_lab(options: LabOptions, *, requester: str, reason: str) -> int:
    """Returns the key of its row. Raises Rejected if it cannot run, or while one is under way."""
    options.check()
    row = Lab(
        options=msgspec.to_builtins(options),
        requested_by=requester,
        reason=check_reason(reason),
        asked_at=timezone.now(),
    )
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as taken:
        raise Rejected(
            "A lab is under way, and two at once would distort each other; wait until it has ended."
        ) from taken
    publish_on_commit(Errand.RECONCILE_LABS)
    return row.pk


def reconcile() -> None:
    """Start a requested lab, once; end one that has died. May be repeated, or run twice at once."""
    for row in Lab.objects.filter(state__in=UNDER_WAY):
        if row.started_at is None:
            _start_keeper(row)
        elif row.keeper is not None and not msgspec.convert(row.keeper, Owner).is_alive:
            _end(row, DIED)
        elif row.keeper is None and timezone.now() - row.started_at > KEEPER_START_WITHIN:
            _end(row, NOT_STARTED)


def _start_keeper(row: Lab) -> None:
    """Starts a process, because no task lives as long as a lab. Of two, one claims the row."""
    Lab.objects.filter(pk=row.pk).update(started_at=timezone.now())
    command = [*settings.LAB_KEEPER_COMMAND, str(row.pk)]
    keeper = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, cwd=settings.BASE_DIR, start_new_session=True
    )
    # Only a wait removes a dead child from the process table.
    threading.Thread(target=keeper.wait, name=f"reap-{keeper.pid}", daemon=True).start()


def _end(row: Lab, why: str) -> None:
    Lab.objects.filter(pk=row.pk, state=row.state).update(
        state=LabState.FAILED, ended_at=timezone.now(), message=why
    )


def keep(key: int) -> None:
    """Runs the lab if this process can claim the row; otherwise does nothing."""
    keeper = msgspec.to_builtins(Owner.this_process())
    claimed = Lab.objects.filter(pk=key, state=LabState.ASKED).update(
        state=LabState.RUNNING, keeper=keeper
    )
    if not claimed:
        return
    options = msgspec.convert(Lab.objects.get(pk=key).options, LabOptions)
    with tempfile.TemporaryFile() as answer:
        last_said = _run([*settings.LAB_COMMAND, *options.words], answer.fileno(), key)
        answer.seek(0)
        _store(key, answer.read(), last_said)


def _run(command: list[str], answer: int, key: int) -> str:
    """Runs the lab, with its progress in the row. Returns its last line."""
    said = ""
    with subprocess.Popen(
        command, stdout=answer, stderr=subprocess.PIPE, cwd=Path(settings.BASE_DIR), text=True
    ) as lab:
        for line in lab.stderr or ():
            said = line.strip() or said
            Lab.objects.filter(pk=key).update(progress=said)
    return said


def _store(key: int, answer: bytes, last_said: str) -> None:
    """A report of broken promises is a report too; without one, the last line explains."""
    row = Lab.objects.filter(pk=key, state=LabState.RUNNING)
    try:
        report = msgspec.json.decode(answer, type=LabReport)
    except UNDECODABLE:
        message = last_said or "It ended without a report and without a word."
        row.update(state=LabState.FAILED, ended_at=timezone.now(), message=message)
    else:
        kept = msgspec.to_builtins(report)
        row.update(state=LabState.ENDED, ended_at=timezone.now(), report=kept)
