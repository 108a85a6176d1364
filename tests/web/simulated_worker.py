"""The worker of the simulated site, and the drivers that it starts.

The worker calls the same functions as a real one; each driver is a story.
"""

import os
import time
from collections.abc import Iterable

from ftdash.audits import services as audit_process
from ftdash.checkpoints.models import Audit
from ftdash.jobs.models import (
    PointComparison,
    PointInspection,
    Request,
    RequestPhase,
    Run,
)
from ftdash.points.services import comparisons
from ftdash.supervision import drivers
from pipelines.domain.commands import RequestKind
from pipelines.domain.status import JobStatus
from tests.web.journals import Story


class SimulatedWorker:
    """Keeps a driver for each run that people ask for, until the run is cancelled."""

    def __init__(self) -> None:
        self._drivers: list[Story] = []

    def go_on(self) -> None:
        """Carries out everything that was asked for since the last time."""
        drivers.deliver_forgotten()
        for inspected in PointInspection.objects.filter(ended_at=None, files=None):
            comparisons.go_on_inspecting(inspected.pk)
        for comparison in PointComparison.objects.filter(ended_at=None):
            comparisons.go_on_comparing(comparison.pk)
        for audit in Audit.objects.filter(started_at=None, ended_at=None):
            audit_process.start(audit.pk)
        for run in Run.objects.filter(started_at=None).select_related("pipeline"):
            if run.pk not in [each.run.pk for each in self._drivers]:
                self._drivers.append(Story(run).started(os.getpid()))

    def drive(self) -> None:
        self._drivers = [each for each in self._drivers if not _has_ended(each)]


def _has_ended(driver: Story) -> bool:
    driver.clock.now_ms = time.time_ns() // 1_000_000
    for request in delivered_to(driver.run, RequestKind.CANCEL):
        driver.answered(request).ended(JobStatus.CANCELED, "Canceled as asked.")
        return True
    driver.sampled()
    return False


def delivered_to(run: Run, kind: RequestKind) -> Iterable[Request]:
    return Request.objects.filter(run=run, kind=kind, phase=RequestPhase.DELIVERED)
