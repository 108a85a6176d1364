"""How far upgrades have come, step by step, and the packages that a pipeline can continue with."""

from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.db.models import QuerySet
from django.utils import timezone

from ftdash.jobs.models import RequestPhase, Run, Upgrade, UpgradeStep
from ftdash.jobs.validation import package_store
from pipelines.domain.run import ShippedCode


@dataclass(frozen=True, slots=True)
class PackageView:
    package: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class StepView:
    """`ended_at` None means that the step is under way."""

    label: str
    began_at: datetime
    ended_at: datetime | None
    text: str
    trace: str  # of the author's code

    @property
    def took_ms(self) -> float | None:
        if self.ended_at is None:
            return None
        return (self.ended_at - self.began_at).total_seconds() * 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeView:
    request_id: str
    pipeline: str
    requester: str
    reason: str
    asked_at: datetime
    ended_at: datetime | None
    phase: RequestPhase
    phase_label: str
    message: str
    old: str
    new: str
    savepoint: str | None
    runs: list[tuple[int, str]]  # number and id: of the code before, the new code, and the way back
    steps: list[StepView]
    now: datetime


def packages() -> list[PackageView]:
    """Returns all packages that were added, by name and version."""
    return msgspec.convert(list(package_store().listed()), list[PackageView], from_attributes=True)


def upgrade_view(pipeline: str, request_id: str) -> UpgradeView | None:
    row = _upgrades(pipeline).filter(request__request_id=request_id).first()
    return None if row is None else _view(row)


def upgrade_views(pipeline: str, limit: int) -> list[UpgradeView]:
    """Returns the newest upgrades of the pipeline, newest first."""
    return [_view(row) for row in _upgrades(pipeline).order_by("-pk")[:limit]]


def _upgrades(pipeline: str) -> QuerySet[Upgrade]:
    related = ("request", "pipeline", "old_run", "new_run", "back_run")
    return Upgrade.objects.select_related(*related).filter(pipeline__name=pipeline)


def _view(row: Upgrade) -> UpgradeView:
    request = row.request
    phase = RequestPhase(request.phase)
    runs = [run for run in (row.old_run, row.new_run, row.back_run) if run is not None]
    return UpgradeView(
        request_id=request.request_id,
        pipeline=row.pipeline.name,
        requester=request.requester,
        reason=request.reason,
        asked_at=request.created_at,
        ended_at=request.ended_at,
        phase=phase,
        phase_label=str(phase.label),
        message=request.message,
        old=_described(row.old_code),
        new=_described(row.new_code),
        savepoint=row.savepoint,
        runs=[_named(run) for run in runs],
        steps=_steps(row),
        now=timezone.now(),
    )


def _described(code: object) -> str:
    if code is None:
        return "an installed package"
    return msgspec.convert(code, ShippedCode).described


def _named(run: Run) -> tuple[int, str]:
    return run.number, run.run_id


def _steps(row: Upgrade) -> list[StepView]:
    over = [
        StepView(
            str(UpgradeStep(each["step"]).label),
            datetime.fromisoformat(each["at"]),
            datetime.fromisoformat(each["ended_at"]),
            each["text"],
            each["trace"],
        )
        for each in row.steps
    ]
    if row.ended_at is not None:
        return over
    return [*over, StepView(str(UpgradeStep(row.step).label), row.step_at, None, "", "")]
