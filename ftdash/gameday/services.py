"""Starts game days and carries them on: the only writer of their rows.

A stored game day survives an outage of the broker: reconcile carries on. No task waits: each round
reads the rows, does what is due, and leaves the rest to the next.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from ftdash.accounts.models import REFUSED_REQUEST
from ftdash.accounts.services import record_refusal, record_request
from ftdash.audits import services as audits
from ftdash.checkpoints.models import Audit
from ftdash.errands import Errand, isolated, publish, publish_on_commit
from ftdash.gameday.injection import NEEDS_SLOT, inject, release, watched_since
from ftdash.gameday.models import UNDER_WAY, Fault, GameDay, GameDayState
from ftdash.gameday.queries import seen
from ftdash.gameday.scoring import Judgement, Seen, judge
from ftdash.jobs.models import Pipeline
from ftdash.jobs.validation import check_reason, check_slot
from ftdash.requests.storing import check_id, check_possible, pipeline_named
from pipelines.bus.lease import Owner
from pipelines.domain.commands import KillSlot
from pipelines.domain.errors import InvariantViolated, Rejected


def start_game_day(
    *,
    pipeline: str,
    fault: Fault,
    slot: int | None,
    requester: str,
    reason: str,
    asked_id: str | None = None,
) -> int:
    """Returns the key of its row; repeating an id returns the same game day, without a new fault.

    Raises Rejected if the pipeline does not allow faults, is not running, or has a game day
    under way, if the fault needs a slot and none is named, or if the id was used for another.
    """
    with _refusal_logged(pipeline, fault, requester, reason):
        if known := _already_asked(asked_id, pipeline, fault):
            return known
        reason = check_reason(reason)
        row = pipeline_named(pipeline)
        run = check_possible(KillSlot, row)
        if run is None:
            raise InvariantViolated("what is running has a run")
        if fault in NEEDS_SLOT:
            check_slot(slot, run.slot_count)
        day = GameDay(
            pipeline=row,
            run=run,
            fault=fault,
            slot=slot if fault in NEEDS_SLOT else None,
            asked_id=asked_id,
            requester=requester,
            reason=reason,
            asked_at=timezone.now(),
        )
        try:
            _store_new(day)
        except IntegrityError as taken:
            if known := _already_asked(asked_id, pipeline, fault):  # at this very moment
                return known
            raise Rejected(
                f"A game day of {pipeline} is under way; the effects of two at once could not be"
                " separated."
            ) from taken
    publish_on_commit(Errand.CARRY_ON_GAME_DAY, day.pk)
    return day.pk


@contextmanager
def _refusal_logged(pipeline: str, fault: Fault, requester: str, reason: str) -> Iterator[None]:
    try:
        yield
    except Rejected as refusal:
        record_refusal(
            who=requester,
            what=REFUSED_REQUEST,
            subject=f"pipeline {pipeline}",
            detail=f"game day: {fault.label}",
            reason=reason,
            refusal=str(refusal),
        )
        raise


def _store_new(day: GameDay) -> None:
    """Raises IntegrityError if one of the pipeline is under way, or has the same id."""
    fault = Fault(day.fault).label
    with transaction.atomic():
        day.save()
        record_request(
            who=day.requester,
            pipeline=day.pipeline.name,
            request_id=f"game day {day.pk}",
            command=fault if day.slot is None else f"{fault}, slot={day.slot}",
            reason=day.reason,
        )
        _make_known(day)


def _already_asked(asked_id: str | None, pipeline: str, fault: Fault) -> int | None:
    if asked_id is None:
        return None
    check_id(asked_id)
    known = GameDay.objects.filter(asked_id=asked_id).select_related("pipeline").first()
    if known is None:
        return None
    if (known.pipeline.name, known.fault) != (pipeline, fault):
        raise Rejected(
            f"The request id {asked_id!r} was used for game day {known.pk} of"
            f" {known.pipeline.name!r}, to {Fault(known.fault).label}; choose another one."
        )
    return int(known.pk)


def carry_on(key: int) -> None:
    """Checks a game day once, and does what is due. May be repeated, or run twice at once."""
    day = GameDay.objects.select_related("pipeline", "run__pipeline", "audit").get(pk=key)
    if day.state == GameDayState.ASKED:
        _inject(day)
    elif day.state in UNDER_WAY:
        _go_on(day)


def reconcile() -> None:
    """One round; an error in one game day does not affect the others."""
    for key in GameDay.objects.filter(state__in=UNDER_WAY).values_list("pk", flat=True):
        with isolated(f"Game day {key}"):
            carry_on(key)


def _inject(day: GameDay) -> None:
    """The worker that claims the row injects the fault once; if it dies here, none happened."""
    claimed = GameDay.objects.filter(pk=day.pk, state=GameDayState.ASKED).update(
        state=GameDayState.INJECTED,
        injected_at=timezone.now(),
        before_sequence=day.run.last_sequence,
        before_attempt=day.run.attempt,
    )
    if not claimed:
        return
    day.refresh_from_db()
    try:
        inject(day)
    except Rejected as refusal:
        day.refusal = str(refusal)
    day.save(update_fields=["request_id", "refusal"])
    _make_known(day)
    if day.release_at is not None:
        publish(Errand.CARRY_ON_GAME_DAY, day.pk, eta=day.release_at)


def _go_on(day: GameDay) -> None:
    if day.fault == Fault.KILL_WORKER:
        _note_who_watches(day)
    found = seen(day)
    judgement = judge(found)
    if day.held is not None and (_is_due(day, found) or judgement.verdict is not None):
        release(msgspec.convert(day.held, Owner))
    if judgement.state is GameDayState.AUDITING and day.audit is None:
        _ask_for_audit(day, found)
    _store(day, judgement, found)


def _note_who_watches(day: GameDay) -> None:
    """Stores the time, because each round overwrites that of the previous round."""
    if day.held is None or day.watched_at is not None:
        return
    killed_at = day.injected_at or day.asked_at
    day.watched_at = watched_since(msgspec.convert(day.held, Owner), killed_at)
    day.save(update_fields=["watched_at"])


def _is_due(day: GameDay, found: Seen) -> bool:
    has_shown = day.fault == Fault.FULL_DISK and found.failed_at is not None
    return has_shown or (day.release_at is not None and timezone.now() >= day.release_at)


def _ask_for_audit(day: GameDay, found: Seen) -> None:
    """An audit begun before the recovery proves nothing about it: the next round asks again."""
    key = audits.ask(day.pipeline.name, f"game day {day.pk}")
    audit = Audit.objects.select_related("run").get(pk=key)
    is_since = found.running_at is not None and audit.created_at > found.running_at
    if is_since and audit.run_id == day.run_id:
        GameDay.objects.filter(pk=day.pk, audit=None).update(audit=audit)


def _store(day: GameDay, judgement: Judgement, found: Seen) -> None:
    changes: dict[str, object] = {"state": judgement.state, "why": judgement.why}
    if judgement.verdict is not None:
        changes |= {
            "verdict": judgement.verdict,
            "ended_at": timezone.now(),
            "seen": msgspec.to_builtins(found),
        }
    unchanged = (day.state, day.why) == (judgement.state, judgement.why)
    if not unchanged and GameDay.objects.filter(pk=day.pk, state=day.state).update(**changes):
        _make_known(day)


def _make_known(day: GameDay) -> None:
    """Raises the version, which makes open pages ask again."""
    Pipeline.objects.filter(pk=day.pipeline_id).update(version=F("version") + 1)
