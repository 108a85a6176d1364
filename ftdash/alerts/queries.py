"""The only reader of alert rows, for pages and API."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx
from django.core.paginator import Paginator
from django.db.models import Count, Max
from django.utils import timezone

from ftdash.alerts.delivery import sentence_of, written
from ftdash.alerts.evaluation import silence_of
from ftdash.alerts.evaluation import silences as silences_at
from ftdash.alerts.hysteresis import Band, Phase
from ftdash.alerts.models import (
    Alert,
    AlertRule,
    Channel,
    ChannelKind,
    Delivery,
    Evaluation,
    News,
    RuleStanding,
    Silence,
    Watched,
)
from ftdash.incidents.causes import Cause
from ftdash.incidents.models import Incident
from ftdash.incidents.queries import advice_of

FIRING_MAX = 50
SILENCES_MAX = 50


@dataclass(frozen=True, slots=True)
class ExplainingIncident:
    """The incident that an alert belongs to."""

    key: int
    cause: Cause
    title: str
    next_step: str
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceView:
    """Of one rule or all, for one pipeline or all."""

    key: int
    rule: str | None
    pipeline: str | None
    until: datetime
    reason: str
    created_by: str
    created_at: datetime
    ended_by: str  # empty: it ends by itself
    ended_at: datetime | None
    is_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    key: int
    rule: str
    pipeline: str
    watched: Watched
    sentence: str  # what is found now and was found when it fired, and where the threshold was
    fired_at: datetime
    fired_value: float  # seconds, bytes or a count; so is the next
    newest_value: float | None  # the last one that was read while it fired
    newest_at: datetime | None
    incident: ExplainingIncident | None  # None: no incident explains it
    silence: SilenceView | None  # None: no silence covers it now
    cleared_at: datetime | None
    cleared_because: str
    acknowledged_by: str  # empty: not acknowledged
    acknowledged_at: datetime | None
    acknowledged_reason: str

    @property
    def lasted(self) -> timedelta | None:
        return self.cleared_at - self.fired_at if self.cleared_at else None


@dataclass(frozen=True, slots=True)
class AlertHistory:
    """One page, newest first; `as_of` is when rules were last judged, None: never."""

    as_of: datetime | None
    count: int
    page: int
    pages: int
    rows: list[AlertView]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleView:
    name: str
    watched: Watched
    pipeline: str | None  # None: all
    band: Band
    fires_above: str  # with its unit, for people; so is the next
    clears_below: str
    is_on: bool
    firing: list[str]  # pipelines
    rising: list[str]  # above the threshold, not for long enough yet


@dataclass(frozen=True, slots=True)
class DeliveryView:
    news: News
    created_at: datetime
    attempts: int
    sent_at: datetime | None
    given_up_at: datetime | None
    problem: str  # of the newest try


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelView:
    """The `address` of a webhook is its scheme and host only; the rest may be a secret."""

    name: str
    kind: ChannelKind
    address: str
    pipeline: str | None  # None: all
    created_by: str
    created_at: datetime
    waiting: int  # messages
    newest: DeliveryView | None


def judged_at() -> datetime | None:
    return Evaluation.objects.values_list("at", flat=True).first()


def firing(pipeline: str | None = None) -> list[AlertView]:
    """The firing alerts, those that wait for a person first, each group newest first."""
    open_alerts = Alert.objects.filter(cleared_at=None)
    if pipeline is not None:
        open_alerts = open_alerts.filter(pipeline__name=pipeline)
    rows = open_alerts.select_related("pipeline", "incident")[:FIRING_MAX]
    now = timezone.now()
    silent = silences_at(now)
    found = [_alert(row, silence_of(row, silent), now) for row in rows]
    return sorted(found, key=lambda alert: bool(alert.acknowledged_by or alert.silence))


def history(page: int, per_page: int) -> AlertHistory:
    """The alerts that have cleared; a page beyond the last is the last."""
    rows = Alert.objects.exclude(cleared_at=None).select_related("pipeline", "incident")
    found = Paginator(rows, per_page).get_page(page)
    return AlertHistory(
        as_of=judged_at(),
        count=found.paginator.count,
        page=found.number,
        pages=found.paginator.num_pages,
        rows=[_alert(row, None, timezone.now()) for row in found],
    )


def alert(key: int) -> AlertView | None:
    row = Alert.objects.filter(pk=key).select_related("pipeline", "incident").first()
    if row is None:
        return None
    now = timezone.now()
    return _alert(row, silence_of(row, silences_at(now)) if row.cleared_at is None else None, now)


def of_incident(incident: int) -> list[AlertView]:
    """The alerts that the incident explains, newest first."""
    rows = Alert.objects.filter(incident=incident).select_related("pipeline", "incident")
    now = timezone.now()
    silent = silences_at(now)
    return [
        _alert(row, silence_of(row, silent) if row.cleared_at is None else None, now)
        for row in rows[:FIRING_MAX]
    ]


def silences() -> list[SilenceView]:
    """Those that hold messages back first, then those that are over; each group newest first."""
    now = timezone.now()
    rows = Silence.objects.select_related("rule", "pipeline")[:SILENCES_MAX]
    return sorted((_silence(row, now) for row in rows), key=lambda each: not each.is_on)


def silence(key: int) -> SilenceView | None:
    row = Silence.objects.filter(pk=key).select_related("rule", "pipeline").first()
    return _silence(row, timezone.now()) if row else None


def rules() -> list[RuleView]:
    """By name."""
    standing: dict[tuple[int, bool], list[str]] = {}
    for row in RuleStanding.objects.exclude(phase=Phase.QUIET).select_related("pipeline"):
        key = (row.rule_id, Phase(row.phase).is_firing)
        standing.setdefault(key, []).append(row.pipeline.name)
    return [_rule(row, standing) for row in AlertRule.objects.select_related("pipeline")]


def rule(name: str) -> RuleView | None:
    return next((each for each in rules() if each.name == name), None)


def channels() -> list[ChannelView]:
    """By name."""
    newest, waiting = _deliveries()
    return [
        ChannelView(
            name=row.name,
            kind=ChannelKind(row.kind),
            address=masked(row),
            pipeline=row.pipeline.name if row.pipeline else None,
            created_by=row.created_by,
            created_at=row.created_at,
            waiting=waiting.get(row.pk, 0),
            newest=newest.get(row.pk),
        )
        for row in Channel.objects.select_related("pipeline")
    ]


def channel(name: str) -> ChannelView | None:
    return next((each for each in channels() if each.name == name), None)


def masked(row: Channel) -> str:
    if row.kind == ChannelKind.MAIL:
        return row.address
    url = httpx.URL(row.address)
    return f"{url.scheme}://{url.netloc.decode('ascii')}/…"


def _deliveries() -> tuple[dict[int, DeliveryView], dict[int, int]]:
    """The newest delivery of each channel, and how many wait."""
    newest: dict[int, DeliveryView] = {}
    keys = Delivery.objects.order_by().values("channel").annotate(key=Max("pk")).values("key")
    for row in Delivery.objects.filter(pk__in=keys):
        newest[row.channel_id] = DeliveryView(
            news=News(row.news),
            created_at=row.created_at,
            attempts=row.attempts,
            sent_at=row.sent_at,
            given_up_at=row.given_up_at,
            problem=row.problem,
        )
    open_ones = Delivery.objects.filter(sent_at=None, given_up_at=None).order_by()
    counted = open_ones.values_list("channel").annotate(count=Count("pk"))
    return newest, dict(counted)


def _silence(row: Silence, now: datetime) -> SilenceView:
    return SilenceView(
        key=row.pk,
        rule=row.rule.name if row.rule else None,
        pipeline=row.pipeline.name if row.pipeline else None,
        until=row.until,
        reason=row.reason,
        created_by=row.created_by,
        created_at=row.created_at,
        ended_by=row.ended_by,
        ended_at=row.ended_at,
        is_on=row.ended_at is None and row.until > now,
    )


def _incident(row: Incident) -> ExplainingIncident:
    advice = advice_of(row)
    return ExplainingIncident(
        row.pk, Cause(row.cause), advice.title, advice.step, is_over=row.closed_at is not None
    )


def _alert(row: Alert, silenced: Silence | None, now: datetime) -> AlertView:
    watched = Watched(row.watched)
    return AlertView(
        key=row.pk,
        rule=row.rule_name,
        pipeline=row.pipeline.name,
        watched=watched,
        sentence=sentence_of(
            watched,
            row.fired_value,
            row.fire_above,
            row.newest_value if row.cleared_at is None else None,
        ),
        fired_at=row.fired_at,
        fired_value=row.fired_value,
        newest_value=row.newest_value,
        newest_at=row.newest_at,
        incident=_incident(row.incident) if row.incident else None,
        silence=_silence(silenced, now) if silenced else None,
        cleared_at=row.cleared_at,
        cleared_because=row.cleared_because,
        acknowledged_by=row.acknowledged_by,
        acknowledged_at=row.acknowledged_at,
        acknowledged_reason=row.acknowledged_reason,
    )


def _rule(row: AlertRule, standing: dict[tuple[int, bool], list[str]]) -> RuleView:
    watched = Watched(row.watched)
    return RuleView(
        name=row.name,
        watched=watched,
        pipeline=row.pipeline.name if row.pipeline else None,
        band=Band(row.fire_above, row.fire_after_s, row.clear_below, row.clear_after_s),
        fires_above=written(watched, row.fire_above),
        clears_below=written(watched, row.clear_below),
        is_on=row.is_on,
        firing=sorted(standing.get((row.pk, True), [])),
        rising=sorted(standing.get((row.pk, False), [])),
    )
