"""Traces by OpenTelemetry's SDK and errors by Sentry's, each only if an address is configured.

Each request to the web server, each checkpoint, and each recovery with its phases is a span.
OpenTelemetry's own variables say where spans go (OTEL_EXPORTER_OTLP_ENDPOINT), under which service
name, and how many are sampled. The projector makes the spans of checkpoints and recoveries from the
journals. It leaves out old events, so that building rows again does not send their spans again.
FTDASH_SENTRY_DSN turns error reports on; they hold no request bodies and no names of people.

Source: names and attributes are those of Flink's trace reporters (`Checkpoint`,
`JobInitialization`).
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings

from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    Envelope,
    RecoveryPhaseReached,
)
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import RecoveryPhase
from pipelines.domain.texts import masked

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SENTRY = "FTDASH_SENTRY_DSN"
OLDEST_MS = 5 * 60_000
"""Older events make no span: they come from a journal that is being folded again."""

STEPS = tuple(RecoveryPhase)[: tuple(RecoveryPhase).index(RecoveryPhase.RESTORE) + 1]
_log = logging.getLogger("ftdash.telemetry")


@cache
def tracer() -> "Tracer | None":
    """Returns None if no endpoint is configured or the SDK is absent."""
    if not any(os.environ.get(each) for each in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("%s is set, and nothing is traced: install ftdash[telemetry].", ENDPOINTS[0])
        return None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "ftdash"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("ftdash")


def report_errors() -> bool:
    """Starts to send this process's errors to Sentry. Returns True if it can."""
    address = settings.SENTRY_DSN
    if not address:
        return False
    try:
        import sentry_sdk
    except ImportError:
        _log.warning("%s is set, and no error is reported: install ftdash[telemetry].", SENTRY)
        return False
    sentry_sdk.init(
        dsn=address,
        send_default_pii=False,
        include_local_variables=False,  # they hold secrets
        max_request_body_size="never",
        before_send=_without_secrets,
    )
    return True


def _without_secrets(event: Any, hint: Any) -> Any:
    return _masked(event)


def _masked(value: Any) -> Any:
    match value:
        case str():
            return masked(value)
        case dict():
            return {key: _masked(each) for key, each in value.items()}
        case list() | tuple():
            return [_masked(each) for each in value]
        case _:
            return value


@contextmanager
def request_span(method: str, request_id: str) -> Iterator[dict[str, Any]]:
    """Traces one request.

    The caller adds `route` and `status` to the yielded dictionary before the context ends.
    """
    said: dict[str, Any] = {}
    traced = tracer()
    if traced is None:
        yield said
        return
    with traced.start_as_current_span(method) as span:
        yield said
        span.update_name(f"{method} {said.get('route', '')}".strip())
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.response.status_code", said.get("status", 0))
        span.set_attribute("ftdash.request", request_id)


@dataclass(slots=True)
class RunSpans:
    """Turns the events of one run into spans, in their order."""

    pipeline: str
    run_id: str
    _triggered: dict[CheckpointId, CheckpointTriggered] = field(default_factory=dict)
    _phases: list[tuple[RecoveryPhase, float]] = field(default_factory=list)

    def on(self, envelope: Envelope) -> None:
        event, at_ms = envelope.event, envelope.at_ms
        match event:
            case CheckpointTriggered():
                self._triggered[event.checkpoint_id] = event
            case CheckpointCompleted():
                facts = {
                    "checkpointType": event.kind.value,
                    "fullSize": event.state_bytes,
                    "checkpointedSize": event.uploaded_bytes,
                }
                began_ms = at_ms - event.end_to_end_ms
                self._checkpoint(event.checkpoint_id, began_ms, at_ms, "COMPLETED", facts)
            case CheckpointFailed(checkpoint_id=checkpoint_id) if checkpoint_id is not None:
                begun = self._triggered.get(checkpoint_id)
                began_ms = at_ms if begun is None else begun.trigger_ms
                facts = {"reason": event.reason.value}
                self._checkpoint(checkpoint_id, began_ms, at_ms, "FAILED", facts)
            case RecoveryPhaseReached(phase=phase) if phase in STEPS:
                self._phases.append((phase, event.duration_ms))
                if phase is RecoveryPhase.RESTORE:
                    self._recovery(envelope, event)

    def _checkpoint(
        self, number: CheckpointId, began_ms: float, at_ms: float, how: str, facts: dict[str, Any]
    ) -> None:
        self._triggered.pop(number, None)
        said = {"checkpointId": number, "checkpointStatus": how, **facts}
        self._span("Checkpoint", began_ms, at_ms, said)

    def _recovery(self, envelope: Envelope, event: RecoveryPhaseReached) -> None:
        phases, self._phases = self._phases, []
        end_ms = float(envelope.at_ms)
        said: dict[str, Any] = {"attempt": envelope.attempt, "initializationStatus": "RUNNING"}
        if event.restored_checkpoint_id is not None:
            said["checkpointId"] = event.restored_checkpoint_id
        said |= {f"{phase.value}DurationMs": duration for phase, duration in phases}
        lasted_ms = sum(duration for _, duration in phases)
        self._span("JobInitialization", end_ms - lasted_ms, end_ms, said)

    def _span(self, name: str, began_ms: float, end_ms: float, said: dict[str, Any]) -> None:
        traced = tracer()
        if traced is None or time.time() * 1000 - end_ms > OLDEST_MS:
            return
        whose = {"ftdash.pipeline": self.pipeline, "ftdash.run": self.run_id}
        span = traced.start_span(name, start_time=_ns(began_ms), attributes={**whose, **said})
        span.end(_ns(end_ms))


def _ns(at_ms: float) -> int:
    return round(at_ms * 1_000_000)
