"""Runs one lab to its end in its own process, and stores its output in its row.

The lab itself is `python -m pipelines.lab`, as on the command line.
"""

import subprocess
import tempfile
from pathlib import Path

import msgspec
from django.conf import settings
from django.utils import timezone

from ftdash.lab.models import Lab, LabState
from pipelines.bus.lease import Owner
from pipelines.domain.errors import UNDECODABLE
from pipelines.lab.options import LabOptions
from pipelines.lab.report import LabReport


def keep(key: int) -> None:
    """The process that claims the row runs it; others do nothing."""
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
    """Returns its last line. While it runs, its progress is in the row."""
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
