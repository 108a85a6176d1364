"""A cluster that answers over HTTP what a real Flink of each version has answered.

The bodies were recorded from a `WatchedJob` under Flink 1.20.3 and 2.3.0. Time advances only when a
test says so: `advance` adds checkpoints as Flink does, which keeps the newest ten.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ftdash.embedded.installation import LOOPBACK

BODIES = Path(__file__).parent / "watched_flink"
VERSIONS = ("1.20", "2.3")
HISTORY_MAX = 10


class RecordedFlink:
    """`requests` holds the requests since `forget_requests`, as "METHOD path"."""

    def __init__(self, version: str) -> None:
        self.bodies: dict[str, Any] = json.loads((BODIES / f"{version}.json").read_text())
        self.jid: str = self.bodies["jobs_overview"]["body"]["jobs"][0]["jid"]
        self.vertices = [each["id"] for each in self.bodies["job"]["body"]["vertices"]]
        self.requests: list[str] = []
        self.under_way = self.under_way_max = 0
        self.token = ""
        self.triggers: Counter[str] = Counter()  # accepted ones, by trigger id
        self.outcomes: dict[str, Any] = {}  # by trigger id; absent means in progress
        self.cancelled = 0
        self.loses_answers = False
        self.redirects_to = ""
        self.address = ""
        self._lock = threading.Lock()

    @property
    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.bodies["jobs_overview"]["body"]["jobs"][0]
        return found

    @property
    def checkpoints(self) -> dict[str, Any]:
        found: dict[str, Any] = self.bodies["checkpoints"]["body"]
        return found

    def forget_requests(self) -> None:
        self.requests.clear()

    def move_to(self, now: datetime) -> None:
        """Moves everything in time so that the newest checkpoint ended now."""
        newest_ms = self.checkpoints["history"][0]["latest_ack_timestamp"]
        _moved(self.bodies, round(now.timestamp() * 1000) - newest_ms)

    def advance(self, count: int, *, status: str = "COMPLETED", took_ms: int | None = None) -> None:
        """Takes further checkpoints, one a second; the one before each loses its files."""
        history = self.checkpoints["history"]
        for _ in range(count):
            newest = next(each for each in history if each["status"] == "COMPLETED")
            added = deepcopy(newest)
            newest["discarded"] = newest["discarded"] or status == "COMPLETED"
            added["discarded"] = False
            added["id"] = history[0]["id"] + 1
            after_ms = history[0]["trigger_timestamp"] + 1_000 - added["trigger_timestamp"]
            added["trigger_timestamp"] += after_ms
            added["latest_ack_timestamp"] += after_ms
            added["external_path"] = f"file:/data/checkpoints/chk-{added['id']}"
            if took_ms is not None:
                added["end_to_end_duration"] = took_ms
            if status == "FAILED":
                del added["external_path"], added["discarded"]
                added["failure_timestamp"] = added["latest_ack_timestamp"]
                added["failure_message"] = "Checkpoint expired before completing."
            added["status"], added["className"] = status, status.lower()
            history.insert(0, added)
            self.checkpoints["latest"]["completed" if status == "COMPLETED" else "failed"] = added
        del history[HISTORY_MAX:]

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        path = urlsplit(target).path
        jobs = f"/jobs/{self.jid}"
        if path == "/config":
            return self._recorded("config")
        if path == "/jobs/overview":
            return self._recorded("jobs_overview")
        if not path.startswith(jobs):
            return self._recorded("no_job_checkpoints")
        rest = path.removeprefix(jobs)
        if method == "PATCH":
            self.cancelled += 1
            return 202, {}
        if method == "POST":
            self.triggers[body["triggerId"]] += 1
            return 202, {"request-id": body["triggerId"]}
        return self._of_job(rest)

    def _of_job(self, rest: str) -> tuple[int, Any]:
        parts = rest.split("/")[1:]
        match parts:
            case []:
                return self._recorded("job")
            case ["status"]:
                return 200, {"status": self.job["state"]}
            case ["exceptions"]:
                return self._recorded("exceptions")
            case ["metrics"]:
                return self._recorded("restarts")
            case ["checkpoints"]:
                return self._recorded("checkpoints")
            case ["checkpoints", "config"]:
                return self._recorded("checkpoints_config")
            case ["checkpoints", "details", number, "subtasks", vertex]:
                if int(number) not in [each["id"] for each in self.checkpoints["history"]]:
                    return self._recorded("subtasks_unknown")
                return self._recorded(f"subtasks_{self.vertices.index(vertex)}")
            case ["vertices", vertex, "backpressure"]:
                return self._recorded(f"backpressure_{self.vertices.index(vertex)}")
            case ["savepoints" | "checkpoints", trigger]:
                if trigger not in self.triggers:
                    return self._recorded("savepoint_unknown")
                pending = {"status": {"id": "IN_PROGRESS"}, "operation": None}
                return 200, self.outcomes.get(trigger, pending)
            case _:
                return 404, {"errors": ["Not found."]}

    def _recorded(self, name: str) -> tuple[int, Any]:
        found = self.bodies[name]
        return found["status"], found["body"]

    def serve(self, handler: "_Handler", method: str) -> None:
        with self._lock:
            self.requests.append(f"{method} {handler.path}")
            self.under_way += 1
            self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            length = int(handler.headers.get("Content-Length") or 0)
            body = json.loads(handler.rfile.read(length) or b"null")
            given = handler.headers.get("Authorization")
            if self.token and given != f"Bearer {self.token}":
                status, answer = 401, {}
            else:
                status, answer = self.answer(method, handler.path, body)
        finally:
            with self._lock:
                self.under_way -= 1
        if self.loses_answers and method != "GET":
            handler.close_connection = True
            return
        content = json.dumps(answer).encode()
        handler.send_response(307 if self.redirects_to else status)
        if self.redirects_to:
            handler.send_header("Location", f"{self.redirects_to}{handler.path}")
        handler.send_header("Content-Type", "application/json; charset=UTF-8")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


TIMES = {
    *("timestamp", "trigger_timestamp", "latest_ack_timestamp", "failure_timestamp"),
    *("restore_timestamp", "ack_timestamp", "start-time", "last-modification", "now"),
}


def _moved(body: Any, by_ms: int) -> None:
    parts = body.items() if isinstance(body, dict) else enumerate(body)
    for key, value in parts:
        if key in TIMES and isinstance(value, int) and value > 0:
            body[key] = value + by_ms
        elif isinstance(value, dict | list):
            _moved(value, by_ms)


class _Server(ThreadingHTTPServer):
    flink: RecordedFlink


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.flink.serve(self, "GET")

    def do_POST(self) -> None:
        self.server.flink.serve(self, "POST")

    def do_PATCH(self) -> None:
        self.server.flink.serve(self, "PATCH")

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing; tests read `requests`."""


@contextmanager
def recorded_flink(version: str) -> Iterator[RecordedFlink]:
    """Serves a cluster until the end of the block."""
    flink = RecordedFlink(version)
    with _Server((LOOPBACK, 0), _Handler) as server:
        server.flink = flink
        flink.address = f"http://{LOOPBACK}:{server.server_address[1]}"
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        try:
            yield flink
        finally:
            server.shutdown()
            serving.join()
