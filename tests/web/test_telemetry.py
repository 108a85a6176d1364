"""Log lines as JSON with the id of their request, and spans that reach a real receiver."""

import gzip
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from django.http import HttpResponse
from django.test import Client, RequestFactory
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ftdash import telemetry
from ftdash.jobs.models import Run
from ftdash.logs import HEADER, JsonLines, named_request
from ftdash.projection.projector import Projector, rebuild
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed, RecoveryPhaseReached
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import RecoveryPhase
from pipelines.domain.texts import remember_secret
from tests.polling import wait_until
from tests.web.journals import Story, new_run

SECRET = "hunter2-of-the-lines"


class Lines:
    def __init__(self) -> None:
        self._written = StringIO()
        self.handler = logging.StreamHandler(self._written)
        self.handler.setFormatter(JsonLines())

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._written.getvalue().splitlines()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines, root = Lines(), logging.getLogger()
    requests = logging.getLogger("ftdash.requests")
    level = requests.level
    requests.setLevel(logging.INFO)
    root.addHandler(lines.handler)
    yield lines
    root.removeHandler(lines.handler)
    requests.setLevel(level)


def test_the_log_line_of_a_request_has_its_id_but_not_its_query(lines: Lines, site: object) -> None:
    answer = Client().get("/healthz?token=abc", headers={HEADER: "from-the-proxy-7"})

    [line] = [each for each in lines.all() if each["logger"] == "ftdash.requests"]
    assert (line["request"], answer.headers[HEADER]) == ("from-the-proxy-7",) * 2
    assert (line["method"], line["path"], line["status"]) == ("GET", "/healthz", 200)
    assert line["time"].endswith("+00:00")
    assert "abc" not in json.dumps(line)


def test_the_line_about_a_request_that_failed_has_its_id_too(lines: Lines, site: object) -> None:
    Client().get("/nowhere/", headers={HEADER: "from-the-proxy-8"})

    [line] = [each for each in lines.all() if each["logger"] == "django.request"]
    assert (line["message"], line["request"]) == ("Not Found: /nowhere/", "from-the-proxy-8")


@pytest.mark.parametrize("given", ["", "short", "with\nbreak-and-more", 'quoted"-and-longer'])
def test_an_invalid_request_id_is_replaced(lines: Lines, site: object, given: str) -> None:
    headers = {} if "\n" in given else {HEADER: given}
    answer = Client().get("/healthz", headers=headers, **{"HTTP_X_REQUEST_ID": given})

    assert answer.headers[HEADER] != given
    assert len(answer.headers[HEADER]) == 32


def test_a_log_record_is_one_json_line_without_secrets(lines: Lines) -> None:
    remember_secret(SECRET)
    try:
        raise ValueError(f"no {SECRET}\nhere")
    except ValueError:
        logging.getLogger("ftdash.any").exception("It fails with\n%s.", SECRET)

    [line] = lines.all()
    assert line["message"] == "It fails with\n***."
    assert "ValueError: no ***" in line["trace"]
    assert "request" not in line


def test_the_log_of_a_worker_has_the_id_of_the_request_that_sent_the_errand(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = Celery("errands", broker="memory://")

    @application.task
    def errand() -> None:
        logging.getLogger("ftdash.errand").warning("It is carried out.")

    def answer(request: Any) -> Any:
        errand.delay()
        return HttpResponse()

    with start_worker(
        application, perform_ping_check=False, shutdown_timeout=30, loglevel="WARNING"
    ):
        logging.getLogger().addHandler(lines.handler)  # the worker has replaced all handlers
        named_request(answer)(RequestFactory().get("/", headers={HEADER: "asked-by-ada"}))
        wait_until(lambda: any(each["logger"] == "ftdash.errand" for each in lines.all()))

    [line] = [each for each in lines.all() if each["logger"] == "ftdash.errand"]
    assert line["request"] == "asked-by-ada"


class Receiver(ThreadingHTTPServer):
    """A receiver of OTLP or of error reports over HTTP, like a collector and Sentry."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.bodies: list[bytes] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Span]:
        return [
            span
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [facts_of(span) for span in self.spans() if span.name == name]


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the name is the library's
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        is_packed = self.headers["Content-Encoding"] == "gzip"
        self.server.bodies.append(gzip.decompress(body) if is_packed else body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *given: object) -> None:
        pass


def facts_of(span: Span) -> dict[str, Any]:
    said = {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }
    return {**said, "ms": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    telemetry.tracer.cache_clear()
    yield receiver
    telemetry.tracer.cache_clear()
    receiver.shutdown()
    receiver.server_close()


def test_a_receiver_gets_the_spans_of_requests_checkpoints_and_recoveries(
    site: object, receiver: Receiver
) -> None:
    Client().get("/healthz", headers={HEADER: "from-the-proxy-7"})
    story = Story(new_run("flights")).started().completed()
    failing = story.next_checkpoint
    story.triggered().tell(
        CheckpointFailed(
            checkpoint_id=failing,
            reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
            message="",
        ),
        *(
            RecoveryPhaseReached(
                phase=phase, duration_ms=100.0, restored_checkpoint_id=CheckpointId(1)
            )
            for phase in RecoveryPhase
        ),
    )
    Projector().run_once()

    wait_until(lambda: len(receiver.spans()) >= 4)

    [request] = receiver.named("GET healthz")
    assert request["http.response.status_code"] == 200
    assert request["ftdash.request"] == "from-the-proxy-7"
    completed, failed = receiver.named("Checkpoint")
    assert (completed["checkpointId"], completed["checkpointStatus"]) == (1, "COMPLETED")
    assert completed["ms"] > 0
    assert (failed["checkpointStatus"], failed["reason"]) == (
        "FAILED",
        CheckpointFailureReason.CHECKPOINT_EXPIRED.value,
    )
    [recovery] = receiver.named("JobInitialization")
    assert recovery["checkpointId"] == 1
    assert recovery["ms"] == 600  # the sum of the six steps; milestones come after its end
    assert recovery["ftdash.pipeline"] == "flights"


def test_old_checkpoints_send_no_span(site: object, receiver: Receiver) -> None:
    story = Story(new_run("flights"))
    story.clock.now_ms -= telemetry.OLDEST_MS + 60_000
    story.started().completed()
    Projector().run_once()

    Client().get("/healthz")
    wait_until(lambda: bool(receiver.named("GET healthz")))

    assert receiver.named("Checkpoint") == []


def test_rows_that_are_built_again_send_no_span_again(site: object, receiver: Receiver) -> None:
    run = new_run("flights")
    Story(run).started().completed()
    Projector().run_once()

    rebuild(Run.objects.select_related("pipeline").get(pk=run.pk))
    Client().get("/healthz")
    wait_until(lambda: bool(receiver.named("GET healthz")))

    assert len(receiver.named("Checkpoint")) == 1


def test_without_an_address_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    for each in telemetry.ENDPOINTS:
        monkeypatch.delenv(each, raising=False)
    settings.SENTRY_DSN = ""
    telemetry.tracer.cache_clear()

    assert telemetry.tracer() is None
    assert telemetry.report_errors() is False


FAILS = """
import django, logging
django.setup()
from pipelines.domain.texts import remember_secret
remember_secret("hunter2-of-the-lines")
try:
    raise ValueError("no hunter2-of-the-lines here")
except ValueError:
    logging.getLogger("ftdash.any").exception("It fails with %s.", "hunter2-of-the-lines")
"""


@pytest.mark.slow
def test_an_error_is_reported_without_a_secret_to_the_address_in_a_file(tmp_path: Path) -> None:
    with Receiver() as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        (tmp_path / "dsn").write_text(f"http://key@127.0.0.1:{receiver.server_port}/1\n")
        given = {"FTDASH_SENTRY_DSN_FILE": str(tmp_path / "dsn"), "FTDASH_HOME": str(tmp_path)}

        subprocess.run([sys.executable, "-c", FAILS], env={**os.environ, **given}, check=True)
        receiver.shutdown()

    [event] = [body.decode() for body in receiver.bodies if b'"exception"' in body]
    assert "no *** here" in event
    assert "It fails with" in event
    assert SECRET not in event
