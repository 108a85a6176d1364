"""The page of failures and recovery: what failed, how the run recovered, what can be restored."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.formats import duration, plural
from ftdash.jobs.answers import (
    ActionOffer,
    DamageView,
    FailureGroup,
    Notice,
    PipelinePage,
    RecoveryAxis,
    RecoveryView,
    RunBrief,
    RunView,
    VerificationView,
    ZombiesView,
    grouped,
)
from ftdash.points.queries import FitPoint, PointChoice, point_choice
from ftdash.runs.queries import pipelines as queries
from ftdash.ui import sentences
from ftdash.ui.events import shared
from ftdash.ui.figures.recovery import recovery_axis, recovery_phases
from ftdash.ui.figures.style import Chart
from ftdash.ui.pipelines.page import (
    PHASES,
    Address,
    RecoveryRow,
    data_at,
    durations_of,
    shown_run,
)
from pipelines.domain.commands import RestorePipeline

_SEVERAL = {"late end of input": "late ends of input"}


def median_durations(recoveries: Sequence[RecoveryView]) -> list[float | None]:
    """The median of each of `PHASES` over the recoveries that reached it; None if none did."""
    columns = zip(*(durations_of(each) for each in recoveries), strict=True)
    medians = [_median([ms for ms in column if ms is not None]) for column in columns]
    return medians or [None] * len(PHASES)


def median_to_running_ms(recoveries: Sequence[RecoveryView]) -> float | None:
    return _median([each.to_running_ms for each in recoveries if each.to_running_ms is not None])


def zombie_sentence(zombies: ZombiesView) -> str:
    """Writes `2 late commits of attempt 3 refused.`"""
    refused = plural(zombies.count, zombies.kind, _SEVERAL.get(zombies.kind))
    whose = f"attempt {zombies.attempt}" if zombies.attempt else "a stranger"
    return f"{refused} of {whose} refused."


def if_it_died(run: RunView | None) -> str:
    """Says the cost of a failure now, and the measurements behind it."""
    if run is None or run.state.is_terminal:
        return "No run is under way, so a failure would cost nothing now."
    if run.records_to_replay is None:
        return "If it died now: the number of records to replay is not known yet."
    replay = f"If it died now: about {plural(run.records_to_replay, 'record')} to replay"
    if run.to_recover_ms is None:
        return f"{replay}; how long that takes is not known until a recovery has been measured."
    recoveries = plural(run.recovery_count, "measured recovery", "measured recoveries")
    waits = run.next_restart_delay_ms or 0.0
    backoff = f", {duration(waits)} of it the delay before a restart" if waits >= 1_000 else ""
    return f"{replay}, about {duration(run.to_recover_ms)}{backoff}, judging by {recoveries}."


def estimate(point: FitPoint, recovery_count: int) -> str:
    """Says the same for a restore from a point."""
    if point.records_to_replay is None:
        return "How much would be read again is not known."
    about = "About " if point.records_to_replay else ""
    replay = f"{about}{plural(point.records_to_replay, 'record')} would be read again"
    if point.estimated_ms is None:
        return f"{replay}; how long that takes is not known until a recovery has been measured."
    recoveries = plural(recovery_count, "measured recovery", "measured recoveries")
    return f"{replay}, in about {duration(point.estimated_ms)}, judging by {recoveries}."


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


POINTS_MAX = 30
DAMAGES_MAX = 3
ROWS_MAX = 50
"""The most rows of each table, the newest ones; the interfaces for programs have all."""

PHASES_SENTENCE = "Where the time of the newest recoveries went; the table below has every phase."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPage:
    page: PipelinePage
    data_at: datetime | None
    shown_run: RunBrief | None
    axis: RecoveryAxis | None
    choice: PointChoice
    axis_chart: Chart
    phases_chart: Chart

    phase_names = PHASES

    @property
    def is_newest_run(self) -> bool:
        newest = self.page.run
        return newest is None or self.shown_run is None or newest.run_id == self.shown_run.run_id

    @property
    def if_it_died(self) -> str:
        return if_it_died(self.page.run)

    @property
    def estimate(self) -> str:
        best = self.choice.recommended
        return estimate(best, self.choice.recovery_count) if best else ""

    @property
    def restore(self) -> ActionOffer:
        return self.page.actions[RestorePipeline.kind]

    @property
    def failures(self) -> list[FailureGroup]:
        return grouped(reversed(self.axis.failures))[:ROWS_MAX] if self.axis else []

    @property
    def recoveries(self) -> list[RecoveryRow]:
        return [RecoveryRow(each, durations_of(each)) for each in self._recoveries[:ROWS_MAX]]

    @property
    def median_row(self) -> list[float | None]:
        return median_durations(self._recoveries)

    @property
    def median_to_running_ms(self) -> float | None:
        return median_to_running_ms(self._recoveries)

    @property
    def zombies(self) -> list[str]:
        return [zombie_sentence(each) for each in self.axis.zombies] if self.axis else []

    @property
    def notices(self) -> list[Notice]:
        return self.axis.notices[: -ROWS_MAX - 1 : -1] if self.axis else []

    @property
    def verification(self) -> VerificationView | None:
        return self.axis.verifications[-1] if self.axis and self.axis.verifications else None

    @property
    def damages(self) -> list[DamageView]:
        """The newest damages, the newest first."""
        return self.axis.damages[: -DAMAGES_MAX - 1 : -1] if self.axis else []

    @property
    def _recoveries(self) -> list[RecoveryView]:
        return self.axis.recoveries[::-1] if self.axis else []


# Plotly fills style elements and sets style attributes, and cannot be given a nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def recovery(request: HttpRequest, name: str) -> HttpResponse:
    view = recovery_page(name, Address.parse(request.GET))
    return render(request, "recovery/page.html", {"view": view})


@require_GET
@never_cache
@shared
def recovery_regions(request: HttpRequest, name: str) -> HttpResponse:
    view = recovery_page(name, Address.parse(request.GET))
    return render(request, "recovery/regions.html", {"view": view, "is_refresh": True})


def recovery_page(name: str, address: Address) -> RecoveryPage:
    """Raises Http404 for a pipeline, or a run of it, that does not exist."""
    page = queries.pipeline_page(name)
    choice = point_choice(name, POINTS_MAX) if page else None
    if page is None or choice is None:
        raise Http404(f"There is no pipeline named {name}.")
    shown = shown_run(page, address)
    axis = queries.recovery_axis(shown.run_id) if shown else None
    said = PHASES_SENTENCE if axis and axis.recoveries else ""
    return RecoveryPage(
        page=page,
        data_at=data_at(page),
        shown_run=shown,
        axis=axis,
        choice=choice,
        axis_chart=Chart("axis", sentences.recovery_axis(axis), recovery_axis(axis)),
        phases_chart=Chart("phases", said, recovery_phases(axis)),
    )
