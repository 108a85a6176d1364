"""The only writer of alert rules and acknowledgements: people's decisions, each logged."""

from django.db import IntegrityError, transaction
from django.utils import timezone

from ftdash.accounts import services
from ftdash.alerts import evaluation
from ftdash.alerts.evaluation import wait_between_rounds
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.message import written
from ftdash.alerts.models import Alert, AlertRule, Watched
from ftdash.formats import held_for
from ftdash.jobs.validation import check_reason
from ftdash.requests.asking import pipeline_named
from pipelines.domain.errors import Rejected

RULES_MAX = 100
"""Each rule is judged for every pipeline, every few seconds."""


def make_rule(
    *, name: str, watched: Watched, pipeline: str | None, band: Band, requester: str, reason: str
) -> str:
    """Returns its name, without surrounding blanks. `pipeline` None: all. Raises Rejected if the
    rule is not possible, or the name is taken."""
    reason, name = check_reason(reason), name.strip()
    _check_name(name)
    band.check()
    if AlertRule.objects.count() >= RULES_MAX:
        raise Rejected(f"There are {RULES_MAX} rules already; delete one that nobody needs.")
    only = None if pipeline is None else pipeline_named(pipeline)
    try:
        with transaction.atomic():
            AlertRule.objects.create(
                name=name, watched=watched.value, pipeline=only, **_columns(band)
            )
            _log(requester, "made", name, reason, f"{watched.label}, {_words(watched, band)}")
    except IntegrityError as error:
        raise Rejected(f"There is a rule {name!r}; choose another name.") from error
    return name


def change_rule(*, name: str, band: Band, requester: str, reason: str) -> None:
    """A firing alert goes on until it clears by the new band."""
    reason = check_reason(reason)
    band.check()
    with transaction.atomic():
        rule = _rule(name)
        AlertRule.objects.filter(pk=rule.pk).update(**_columns(band))
        _log(requester, "changed", name, reason, _words(Watched(rule.watched), band))


def switch_rule(*, name: str, is_on: bool, requester: str, reason: str) -> None:
    """Off: its alerts clear, and none fires until it is on again."""
    reason = check_reason(reason)
    with transaction.atomic():
        rule = _rule(name)
        if rule.is_on == is_on:
            raise Rejected(f"The rule {name!r} is {'on' if is_on else 'off'} already.")
        AlertRule.objects.filter(pk=rule.pk).update(is_on=is_on)
        if not is_on:
            _end_alerts(rule, f"The rule was switched off by {requester}.")
        _log(requester, "switched on" if is_on else "switched off", name, reason)


def delete_rule(*, name: str, requester: str, reason: str) -> None:
    """Its past alerts stay in the history."""
    reason = check_reason(reason)
    with transaction.atomic():
        rule = _rule(name)
        _end_alerts(rule, f"The rule was deleted by {requester}.")
        rule.delete()
        _log(requester, "deleted", name, reason)


def acknowledge(*, alert: int, requester: str, reason: str) -> None:
    """Says that a person looks after it. It stays until it clears; a second person is refused."""
    reason = check_reason(reason)
    with transaction.atomic():
        row = Alert.objects.filter(pk=alert).select_related("pipeline").first()
        if row is None:
            raise Rejected(f"There is no alert {alert}.")
        if row.cleared_at is not None:
            raise Rejected("This alert has cleared already.")
        mine = Alert.objects.filter(pk=alert, acknowledged_at=None)
        if not mine.update(
            acknowledged_by=requester,
            acknowledged_at=timezone.now(),
            acknowledged_reason=reason,
        ):
            raise Rejected(f"{row.acknowledged_by} looks after this alert already.")
        subject = f"alert {row.rule_name} of {row.pipeline.name}"
        services.record(who=requester, what="acknowledged", subject=subject, reason=reason)


def _end_alerts(rule: AlertRule, because: str) -> None:
    evaluation.clear(Alert.objects.filter(rule=rule), because, timezone.now())
    rule.standings.all().delete()


def _rule(name: str) -> AlertRule:
    """Locks, so that a round that has read the rule is over, and the next one reads the change."""
    wait_between_rounds()
    row = AlertRule.objects.filter(name=name).first()
    if row is None:
        raise Rejected(f"There is no rule {name!r}.")
    return row


def _check_name(name: str) -> None:
    if not (1 <= len(name) <= 80 and name.isprintable()):
        raise Rejected("The name of a rule is 1 to 80 letters, digits, signs and blanks.")


def _columns(band: Band) -> dict[str, float]:
    return {
        "fire_above": band.fire_above,
        "fire_after_s": band.fire_after_s,
        "clear_below": band.clear_below,
        "clear_after_s": band.clear_after_s,
    }


def _words(watched: Watched, band: Band) -> str:
    return (
        f"above {written(watched, band.fire_above)} {held_for(band.fire_after_s)}, until below"
        f" {written(watched, band.clear_below)} {held_for(band.clear_after_s)}"
    )


def _log(who: str, what: str, name: str, reason: str, detail: str = "") -> None:
    services.record(who=who, what=what, subject=f"rule {name}", reason=reason, detail=detail)
