"""Decides what pages may honestly say about a run: its state, or unknown, and if it is late.

A running driver reports once a second. Rows contain its last report, so they are only as good as
the chain that filled them: the driver, and the projector that folds its journal. Pages, alerts,
monitors and estimates share the rule for lateness and the formula for the length of a recovery.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

import msgspec
from django.conf import settings
from django.utils import timezone

from ftdash.formats import age, count, plural, size
from ftdash.jobs.answers import Liveness, ShownState
from ftdash.jobs.models import Run
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.runs.fleet_answers import NewestRun
from pipelines.domain.events import RestoreProgress
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus, RecoveryPhase

_SILENT = {
    HeartbeatName.PROJECTOR: (
        "The projector, which turns reports of running pipelines into these pages, {since}; start"
        " it with `manage.py projector`."
    ),
    HeartbeatName.RECONCILE: (
        "The worker, its beat or the Redis between them, which deliver requests and restart"
        " pipelines, {since}; requests are kept and wait. Start those that are down, such as with"
        " systemctl start redis-server ftdash-worker ftdash-beat."
    ),
}


AnyRun = Run | NewestRun


class Heard(Protocol):
    """A value that says when both processes were last heard of. Every value on a page does so."""

    @property
    def now(self) -> datetime: ...
    @property
    def projector(self) -> Liveness: ...
    @property
    def reconcile(self) -> Liveness: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """The processes that were alive when the rows were read."""

    now: datetime
    projector: Liveness
    reconcile: Liveness

    @property
    def as_of(self) -> datetime | None:
        """The time of data that needs both processes; None if one has never run."""
        if self.projector.at is None or self.reconcile.at is None:
            return None
        return min(self.projector.at, self.reconcile.at)


def observe() -> Observation:
    now = timezone.now()
    beats = {beat.name: beat for beat in Heartbeat.objects.all()}
    return Observation(
        now=now,
        projector=_liveness(HeartbeatName.PROJECTOR, beats, now),
        reconcile=_liveness(HeartbeatName.RECONCILE, beats, now),
    )


def silent_in(seen: Heard) -> timedelta | None:
    """Returns the time until the first of them would be called silent; None if one already is."""
    left = [
        timedelta(seconds=settings.SILENT_AFTER_S) - abs(seen.now - each.at)
        for each in (seen.projector, seen.reconcile)
        if each.is_alive and each.at is not None
    ]
    return min(left) if len(left) == len(HeartbeatName) else None


def shown_state(run: AnyRun | None, seen: Observation) -> tuple[ShownState, str]:
    """Returns the state and one sentence about it, which may be empty."""
    if run is None:
        return ShownState.NEVER_STARTED, "This pipeline has not been started yet."
    if JobStatus(run.status).is_terminal:
        return ShownState(run.status), run.reason
    if run.projection_error:
        return ShownState.UNKNOWN, f"Its journal cannot be read on: {run.projection_error}"
    if not seen.projector.is_alive:
        return ShownState.UNKNOWN, seen.projector.note
    if run.last_event_at is None:
        return ShownState.CREATED, run.driver_note or "Its driver has not reported yet."
    if clock_off_s(run, seen.now):
        return ShownState.STALE, _of_clock(run, seen.now)
    silent_for = seen.now - run.last_event_at
    if is_lost(run) or silent_for > timedelta(seconds=settings.SILENT_AFTER_S):
        return ShownState.STALE, _silence(run, silent_for)
    return ShownState(run.status), _restoring(run) or run.reason


def _restoring(run: AnyRun) -> str:
    """Says how far the reading of a recovery point is; empty while none is read."""
    if run.restoring is None:
        return ""
    done = msgspec.convert(run.restoring, RestoreProgress)
    task = "The driver verifies" if done.is_verifying else "The slots load"
    files = f"{count(done.read_files)} of {plural(done.total_files, 'file')}"
    return (
        f"{task} the recovery point: {size(done.read_bytes)} of {size(done.total_bytes)}, {files}."
    )


def clock_off_s(run: AnyRun, now: datetime) -> float:
    """Returns how many seconds the driver's clock is ahead of this one's.

    Negative means that it is behind the time at which its reports were written. 0 means that it is
    right, or off by no more than clocks usually differ.
    """
    if run.last_event_at is None:
        return 0.0
    if run.clock_behind_s > settings.CLOCKS_DIFFER_S:
        return -run.clock_behind_s
    ahead = (run.last_event_at - now).total_seconds()
    return ahead if ahead > settings.CLOCKS_DIFFER_S else 0.0


def is_lost(run: AnyRun) -> bool:
    """True if the driver that spoke last is known to be gone.

    Another one was started since, or is due. It is not silent, so a page need not wait to say so.
    """
    spoke_at = run.last_event_at
    since = [run.driver_started_at, run.driver_waits_since if run.driver_due_at else None]
    return spoke_at is not None and any(at is not None and at > spoke_at for at in since)


def _of_clock(run: AnyRun, now: datetime) -> str:
    off_s = clock_off_s(run, now)
    return (
        f"The clock of the driver's machine is {age(1000 * abs(off_s))}"
        f" {'ahead of' if off_s > 0 else 'behind'} this one's, so what it reports cannot be dated."
    )


def _silence(run: AnyRun, silent_for: timedelta) -> str:
    sentence = (
        f"The driver was {run.status} and has reported nothing for"
        f" {age(1000 * silent_for.total_seconds())}."
    )
    note = fresh_driver_note(run)
    return f"{sentence} {note}" if note else sentence


def fresh_driver_note(run: AnyRun) -> str:
    """Returns what the control plane last did about the driver, until the driver speaks for itself.

    If the driver is silent now, returns a sentence about that instead.
    """
    if run.driver_silence and not run.is_terminal:
        return run.driver_silence
    started_at, spoke_at = run.driver_started_at, run.last_event_at
    if spoke_at is not None and (started_at is None or started_at <= spoke_at):
        return ""
    return run.driver_note


def _liveness(name: HeartbeatName, beats: dict[str, Heartbeat], now: datetime) -> Liveness:
    beat = beats.get(name)
    if beat is None:
        return Liveness(False, None, _SILENT[name].format(since="has never run"))
    silent_s = abs((now - beat.at).total_seconds())  # from the future is no sign of life either
    if silent_s > settings.SILENT_AFTER_S:
        since = f"has been silent for {age(1000 * silent_s)}"
        return Liveness(False, beat.at, _SILENT[name].format(since=since))
    return Liveness(True, beat.at, beat.note, beat.unread_since)


LATE_AFTER_INTERVALS = 3
"""For a run whose interval is so long that the general bound would always be exceeded."""

SETTINGS_MAX = 1_024
"""How many runs' settings are kept as parsed."""


def checkpoint_interval_s(run: AnyRun) -> float | None:
    """Returns None if the run completes checkpoints only on request."""
    return _interval_s(tuple(sorted(run.settings_now.items())))


@lru_cache(maxsize=SETTINGS_MAX)
def _interval_s(given: tuple[tuple[str, str], ...]) -> float | None:
    interval_ms = parse_settings(dict(given)).checkpointing.interval_ms
    return None if interval_ms is None else interval_ms / 1000


def late_after_s(interval_s: float | None, general_s: float) -> float:
    """Returns `general_s`, or this many intervals if that is longer."""
    return max(general_s, LATE_AFTER_INTERVALS * (interval_s or 0.0))


_PHASES = [phase.value for phase in RecoveryPhase]
UP_TO_RUNNING = frozenset(_PHASES[: _PHASES.index(RecoveryPhase.RESTORE.value) + 1])


def to_running_ms(running_at: datetime | None, phases: list[dict[str, Any]]) -> float | None:
    """Returns the time from the failure until all subtasks ran, or None if they do not yet.

    It takes the fields of a recovery.
    """
    if running_at is None:
        return None
    reached = (each for each in phases if each["phase"] in UP_TO_RUNNING)
    return float(sum(phase["duration_ms"] for phase in reached))


def without_backoff(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in phases if each["phase"] != RecoveryPhase.BACKOFF.value]
