"""Hosts the decider: starts the request whose turn it is, or refuses it before it gets an id.

Decides nothing itself; the caller carries out a start (`checkpoint_host`).
"""

from collections.abc import Callable

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed
from pipelines.domain.settings import CapAction, Settings
from pipelines.protocol.triggering import (
    PERIODIC,
    Refuse,
    Start,
    TriggerDecider,
    TriggerRequest,
    TriggerRules,
    WaitUntil,
)
from pipelines.runtime.master.checkpoints.underway import CheckpointListener
from pipelines.runtime.master.run_context import RunContext


class TriggerDesk:
    def __init__(self, context: RunContext, listener: CheckpointListener) -> None:
        self._context = context
        self._listener = listener
        self._settings = context.settings
        self._decider = TriggerDecider(rules=_rules(self._settings))
        self._refusal_shown = False  # of a periodic one, in this attempt

    def on_running(self) -> None:
        self._refusal_shown = False
        self._decider.on_running(self._context.clock.monotonic_ms(), self._first_delay_ms())

    def on_stopped(self) -> None:
        self._decider.on_stopped()

    def on_settings(self, settings: Settings) -> None:
        self._settings = settings
        self._decider.on_rules(_rules(settings), self._context.clock.monotonic_ms())

    def on_source_finished(self) -> None:
        self._decider.on_source_finished()

    def on_sources_ended(self) -> None:
        self._decider.on_sources_ended()

    def on_reservation_wanted(self) -> None:
        self._decider.on_reservation_wanted(self._context.clock.monotonic_ms())

    def on_request(self, request: TriggerRequest) -> bool:
        """False: too many requests are waiting."""
        is_queued = self._decider.on_request(request)
        if not is_queued:
            self._show_refusal(request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)
        return is_queued

    def start_what_is_due(
        self, now_ms: float, start: Callable[[TriggerRequest], None], is_busy: Callable[[], bool]
    ) -> float | None:
        """Returns when something else may start (None: not before another event).

        Nothing starts while the last one `is_busy` being triggered.
        """
        while not is_busy():
            match self._decider.next(now_ms):
                case Start(request):
                    self._decider.on_started(request, now_ms)
                    start(request)
                case Refuse(request, reason):
                    self._decider.on_refused(request, now_ms)
                    self._refuse(request, reason)
                case WaitUntil(monotonic_ms):
                    return monotonic_ms
        return None

    def on_completed(self, request: TriggerRequest) -> None:
        self._decider.on_completed(request, self._context.clock.monotonic_ms())
        if request.stops_run:
            self._decider.on_stopped()  # nothing follows the checkpoint that ends the run

    def on_aborted(self, request: TriggerRequest) -> None:
        self._decider.on_aborted(request, self._context.clock.monotonic_ms())

    def _refuse(self, request: TriggerRequest, reason: CheckpointFailureReason) -> None:
        """A periodic one is refused at every beat; one report per attempt is enough."""
        if request is not PERIODIC or not self._refusal_shown:
            self._show_refusal(request, reason)
        self._refusal_shown = self._refusal_shown or request is PERIODIC
        self._listener.checkpoint_aborted(request, reason)

    def _show_refusal(self, request: TriggerRequest, reason: CheckpointFailureReason) -> None:
        self._context.record.emit(
            CheckpointFailed(
                checkpoint_id=None, reason=reason, message="", request_id=request.request_id
            )
        )

    def _first_delay_ms(self) -> float | None:
        interval_ms = self._settings.checkpoint_interval_ms
        if interval_ms is None:
            return None
        pause_ms = min(self._settings.min_pause_ms, interval_ms)
        return self._context.draw(pause_ms, interval_ms)


def _rules(settings: Settings) -> TriggerRules:
    """Only one checkpoint can keep records in flight, so if barriers overtake, savepoints wait."""
    may_overtake = settings.unaligned or settings.cap_action is CapAction.UNALIGNED
    return TriggerRules(
        interval_ms=settings.checkpoint_interval_ms,
        min_pause_ms=settings.min_pause_ms,
        max_concurrent=settings.max_concurrent_checkpoints,
        forces_savepoints=not may_overtake,
        allows_finished_sources=settings.allows_finished_sources,
    )
