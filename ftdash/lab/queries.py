"""The only reader of the rows of labs."""

from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.utils import timezone

from ftdash.lab.models import UNDER_WAY, Lab, LabState
from pipelines.bus.lease import Owner
from pipelines.lab.options import LabOptions
from pipelines.lab.report import LabReport

LABS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LabView:
    key: int
    options: LabOptions
    requested_by: str
    reason: str
    state: LabState
    asked_at: datetime
    ended_at: datetime | None
    progress: str
    message: str
    report: LabReport | None

    @property
    def state_words(self) -> str:
        """The state in words."""
        return str(self.state.label)

    @property
    def is_under_way(self) -> bool:
        return self.state in UNDER_WAY


@dataclass(frozen=True, slots=True)
class Labs:
    """`shown` is the chosen lab, or else the newest that has a report."""

    now: datetime
    labs: list[LabView]  # newest first
    shown: LabView | None

    @property
    def under_way(self) -> LabView | None:
        return next((lab for lab in self.labs if lab.is_under_way), None)

    @property
    def newest_failed(self) -> LabView | None:
        """The newest lab, if it has no result and none is under way."""
        newest = self.labs[0] if self.labs else None
        return newest if newest and newest.state is LabState.FAILED else None


def labs(chosen: int | None = None) -> Labs:
    """Shows a lab that has died as failed, even if its row does not say so yet."""
    newest = [_view(row) for row in Lab.objects.all()[:LABS_MAX]]
    if chosen is None:
        shown = next((lab for lab in newest if lab.report is not None), None)
    else:
        row = Lab.objects.filter(pk=chosen).first()
        shown = None if row is None else _view(row)
    return Labs(timezone.now(), newest, shown)


def _view(row: Lab) -> LabView:
    has_died = row.keeper is not None and not msgspec.convert(row.keeper, Owner).is_alive
    is_lost = row.state == LabState.RUNNING and has_died
    return LabView(
        key=row.pk,
        options=msgspec.convert(row.options, LabOptions),
        requested_by=row.requested_by,
        reason=row.reason,
        state=LabState.FAILED if is_lost else LabState(row.state),
        asked_at=row.asked_at,
        ended_at=row.ended_at,
        progress=row.progress,
        message=row.message,
        report=None if row.report is None else msgspec.convert(row.report, LabReport),
    )
