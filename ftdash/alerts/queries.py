"""The only reader of alert rows, for pages and API."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx
from django.core.paginator import Paginator
from django.db.models import Count, Max, QuerySet
from django.utils import timezone

from ftdash.alerts.delivery import sentence_of, written
from ftdash.alerts.evaluation import SILENCED, silence_of, silence_of_watched
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
from ftdash.flink_clusters.models import FlinkCluster
from ftdash.incidents.causes import Advice, Cause
from ftdash.incidents.models import Incident
from ftdash.incidents.queries import advices_of
from ftdash.watching.models import WatchedQuery

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
    """A silence of one rule or all, for a pipeline, watched query or Flink cluster, or for all."""

    key: int
    rule: str | None
    pipeline: str | None
    query: str | None
    flink_cluster: str | None
    until: datetime
    reason: str
    created_by: str
    created_at: datetime
    ended_by: str  # empty if it ends by itself
    ended_at: datetime | None
    is_on: bool

    @property
    def what(self) -> str:
        if self.query or self.flink_cluster:
            return "incidents"
        return self.rule or "all rules"

    @property
    def place(self) -> str:
        if self.query:
            return f"query {self.query}"
        if self.flink_cluster:
            return f"Flink cluster {self.flink_cluster}"
        return self.pipeline or "all pipelines"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    key: int
    rule: str
    pipeline: str
    watched: Watched
    sentence: str  # the value now and when it fired, and the threshold
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
    """One page, newest first; `as_of` is when rules were last judged, or None if never."""

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
    """Returns the firing alerts: first those that wait for a person, each group newest first."""
    open_alerts = _rows().filter(cleared_at=None)
    if pipeline is not None:
        open_alerts = open_alerts.filter(pipeline__name=pipeline)
    found = _alerts(open_alerts[:FIRING_MAX])
    return sorted(found, key=lambda alert: bool(alert.acknowledged_by or alert.silence))


def history(page: int, per_page: int) -> AlertHistory:
    """Returns the cleared alerts; a page number beyond the last gives the last page."""
    found = Paginator(_rows().exclude(cleared_at=None), per_page).get_page(page)
    return AlertHistory(
        as_of=judged_at(),
        count=found.paginator.count,
        page=found.number,
        pages=found.paginator.num_pages,
        rows=_alerts(found),
    )


def alert(key: int) -> AlertView | None:
    found = _alerts(_rows().filter(pk=key))
    return found[0] if found else None


def of_incident(incident: int) -> list[AlertView]:
    """The alerts that the incident explains, newest first."""
    return _alerts(_rows().filter(incident=incident)[:FIRING_MAX])


def silences() -> list[SilenceView]:
    """Returns first the silences in force, then those that are over; each group newest first."""
    now = timezone.now()
    rows = Silence.objects.select_related(*SILENCED)[:SILENCES_MAX]
    return sorted((_silence(row, now) for row in rows), key=lambda each: not each.is_on)


def silence(key: int) -> SilenceView | None:
    row = Silence.objects.filter(pk=key).select_related(*SILENCED).first()
    return _silence(row, timezone.now()) if row else None


def silence_of_query(name: str) -> SilenceView | None:
    """Returns the silence that holds back messages about a watched query now."""
    row, now = WatchedQuery.objects.filter(name=name, removed_at=None).first(), timezone.now()
    if row is None:
        return None
    found = silence_of_watched(silences_at(now), query=row.pk, flink_cluster=None)
    return _silence(found, now) if found else None


def silence_of_cluster(name: str) -> SilenceView | None:
    """Returns the silence that holds back messages about a Flink cluster and its jobs now."""
    row, now = FlinkCluster.objects.filter(name=name).first(), timezone.now()
    if row is None:
        return None
    found = silence_of_watched(silences_at(now), query=None, flink_cluster=row.pk)
    return _silence(found, now) if found else None


def rules() -> list[RuleView]:
    """Returns the rules by name."""
    names_by_rule: dict[tuple[int, bool], list[str]] = {}
    for row in RuleStanding.objects.exclude(phase=Phase.QUIET).select_related("pipeline"):
        key = (row.rule_id, Phase(row.phase).is_firing)
        names_by_rule.setdefault(key, []).append(row.pipeline.name)
    return [_rule(row, names_by_rule) for row in AlertRule.objects.select_related("pipeline")]


def rule(name: str) -> RuleView | None:
    return next((each for each in rules() if each.name == name), None)


def channels() -> list[ChannelView]:
    """Returns the channels by name."""
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
        query=row.query.name if row.query else None,
        flink_cluster=row.flink_cluster.name if row.flink_cluster else None,
        until=row.until,
        reason=row.reason,
        created_by=row.created_by,
        created_at=row.created_at,
        ended_by=row.ended_by,
        ended_at=row.ended_at,
        is_on=row.ended_at is None and row.until > now,
    )


def _rows() -> QuerySet[Alert]:
    return Alert.objects.select_related("pipeline", "incident")


def _alerts(rows: Iterable[Alert]) -> list[AlertView]:
    """Converts rows of `_rows`, with the same few queries for any number."""
    found, now = list(rows), timezone.now()
    if not found:
        return []
    incidents = {row.incident.pk: row.incident for row in found if row.incident}
    advices = advices_of(incidents.values())
    explaining = {key: _incident(incidents[key], advices[key]) for key in incidents}
    silent = silences_at(now)
    return [_alert(row, explaining.get(row.incident_id or 0), silent, now) for row in found]


def _incident(row: Incident, advice: Advice) -> ExplainingIncident:
    return ExplainingIncident(
        row.pk, Cause(row.cause), advice.title, advice.step, is_over=row.closed_at is not None
    )


def _alert(
    row: Alert, incident: ExplainingIncident | None, silent: list[Silence], now: datetime
) -> AlertView:
    """A silence covers an alert only while it fires."""
    watched, fires = Watched(row.watched), row.cleared_at is None
    silenced = silence_of(row, silent) if fires else None
    return AlertView(
        key=row.pk,
        rule=row.rule_name,
        pipeline=row.pipeline.name,
        watched=watched,
        sentence=sentence_of(
            watched, row.fired_value, row.fire_above, row.newest_value if fires else None
        ),
        fired_at=row.fired_at,
        fired_value=row.fired_value,
        newest_value=row.newest_value,
        newest_at=row.newest_at,
        incident=incident,
        silence=_silence(silenced, now) if silenced else None,
        cleared_at=row.cleared_at,
        cleared_because=row.cleared_because,
        acknowledged_by=row.acknowledged_by,
        acknowledged_at=row.acknowledged_at,
        acknowledged_reason=row.acknowledged_reason,
    )


def _rule(row: AlertRule, names_by_rule: dict[tuple[int, bool], list[str]]) -> RuleView:
    watched = Watched(row.watched)
    return RuleView(
        name=row.name,
        watched=watched,
        pipeline=row.pipeline.name if row.pipeline else None,
        band=Band(row.fire_above, row.fire_after_s, row.clear_below, row.clear_after_s),
        fires_above=written(watched, row.fire_above),
        clears_below=written(watched, row.clear_below),
        is_on=row.is_on,
        firing=sorted(names_by_rule.get((row.pk, True), [])),
        rising=sorted(names_by_rule.get((row.pk, False), [])),
    )
