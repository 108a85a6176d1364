"""Judges every rule for every pipeline, and writes which alerts fired and cleared, each once.

Any worker may do it, at any time and twice at once. It takes the readings first, and judges them
under the lock of one row, in the order in which they were taken. A change to a rule takes that lock
too. Standings, alerts and the messages about them are one transaction; `delivery` sends the
messages later.

Writes that an alert fired or cleared, and a message about it to every channel concerned.

It does so in the caller's transaction: no alert without its messages, no message without its alert.
The worker is called on commit; if none answers, the next beat delivers.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from ftdash.alerts.hysteresis import Absent, Band, Effect, Phase, Reading, Standing, at_first, judge
from ftdash.alerts.models import (
    Alert,
    AlertRule,
    Channel,
    Delivery,
    Evaluation,
    News,
    RuleStanding,
    Watched,
)
from ftdash.alerts.readings import ONCE_AN_INTERVAL, PipelineReadings, readings
from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.models import Pipeline
from ftdash.runs.timeliness import late_after_s


def fire(
    rule: AlertRule, pipeline: Pipeline, value: float, now: datetime, *, fire_above: float
) -> None:
    """`fire_above`: the threshold for this pipeline."""
    alert = Alert.objects.create(
        rule=rule,
        rule_name=rule.name,
        watched=rule.watched,
        pipeline=pipeline,
        fire_above=fire_above,
        fired_at=now,
        fired_value=value,
    )
    _tell_all(alert, News.FIRED, now)


def clear(alerts: QuerySet[Alert], because: str, now: datetime) -> None:
    """Clears the open ones of `alerts`; alerts that cleared before stay as they were."""
    for alert in alerts.filter(cleared_at=None):
        still_open = Alert.objects.filter(pk=alert.pk, cleared_at=None)
        if still_open.update(cleared_at=now, cleared_because=because):
            _tell_all(alert, News.CLEARED, now)


def tell(channel: Channel, alert: Alert | None, news: News, now: datetime) -> Delivery:
    made = Delivery.objects.create(
        channel=channel, alert=alert, news=news, created_at=now, due_at=now
    )
    publish_on_commit(Errand.DELIVER_ALERTS)
    return made


def _tell_all(alert: Alert, news: News, now: datetime) -> None:
    for channel in Channel.objects.filter(Q(pipeline=None) | Q(pipeline=alert.pipeline_id)):
        tell(channel, alert, news, now)


BACK_TO_NORMAL = "The value has stayed below the lower threshold."
BECAUSE: dict[Reading, str] = {
    Absent.OVER: "The run is over.",
    Absent.UNASKED: "The run takes no periodic checkpoints any more.",
}
IN_TIME_INTERVALS = 2
"""Between one, which is normal, and `lateness.LATE_AFTER_INTERVALS`."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """One rule for one pipeline, before and after a reading."""

    rule: AlertRule
    pipeline: Pipeline
    band: Band
    reading: Reading
    before: Standing
    standing: Standing
    effect: Effect


def evaluate(now: datetime) -> None:
    """One round. Raises what the database raises; the next round starts from the stored state."""
    found = readings(now)
    with transaction.atomic():
        if not _is_my_turn(now):
            return
        judged = _judge_all(found, now)
        _keep_standings(judged)
        for each in judged:
            _carry_out(each, now)


def band_of(rule: AlertRule, found: PipelineReadings) -> Band:
    """The rule's own band, but wider for what is so rare that it would always be late."""
    band = Band(rule.fire_above, rule.fire_after_s, rule.clear_below, rule.clear_after_s)
    late_s = late_after_s(found.interval_s, band.fire_above)
    if late_s == band.fire_above or rule.watched not in ONCE_AN_INTERVAL:
        return band
    in_time_s = IN_TIME_INTERVALS * (found.interval_s or 0.0)
    return replace(band, fire_above=late_s, clear_below=max(band.clear_below, in_time_s))


def wait_between_rounds() -> Evaluation:
    """Until the caller's transaction ends, only the caller judges rules."""
    Evaluation.objects.get_or_create(pk=1, defaults={"at": datetime.fromtimestamp(0, UTC)})
    return Evaluation.objects.select_for_update().get(pk=1)


def _is_my_turn(now: datetime) -> bool:
    """False if newer readings were judged meanwhile, unless a clock set back explains it."""
    row = wait_between_rounds()
    if now <= row.at <= timezone.now():
        return False
    row.at = now
    row.save()
    return True


def _judge_all(found: list[PipelineReadings], now: datetime) -> list[_Judged]:
    rows = {(row.rule_id, row.pipeline_id): row for row in RuleStanding.objects.all()}
    return [
        _judge_one(rule, each, rows.get((rule.pk, each.pipeline.pk)), now)
        for rule in AlertRule.objects.filter(is_on=True)
        for each in found
        if rule.pipeline_id in (None, each.pipeline.pk)
    ]


def _judge_one(
    rule: AlertRule, found: PipelineReadings, row: RuleStanding | None, now: datetime
) -> _Judged:
    now_s = now.timestamp()
    before = Standing(Phase(row.phase), row.since.timestamp()) if row else at_first(now_s)
    reading = found.values[Watched(rule.watched)]
    band = band_of(rule, found)
    standing, effect = judge(band, before, reading, now_s)
    return _Judged(rule, found.pipeline, band, reading, before, standing, effect)


def _keep_standings(judged: list[_Judged]) -> None:
    """Writes only the changed ones: most rounds write nothing."""
    for each in judged:
        if each.standing == each.before:
            continue
        since = datetime.fromtimestamp(each.standing.since_s, UTC)
        RuleStanding.objects.update_or_create(
            rule=each.rule,
            pipeline=each.pipeline,
            defaults={"phase": each.standing.phase, "since": since},
        )


def _carry_out(judged: _Judged, now: datetime) -> None:
    match judged.effect:
        case Effect.FIRED:
            value = judged.reading if isinstance(judged.reading, float) else 0.0
            above = judged.band.fire_above
            fire(judged.rule, judged.pipeline, value, now, fire_above=above)
        case Effect.CLEARED:
            because = BECAUSE.get(judged.reading, BACK_TO_NORMAL)
            alerts = Alert.objects.filter(rule=judged.rule, pipeline=judged.pipeline)
            clear(alerts, because, now)
        case Effect.NONE:
            return
