"""A dashboard as a listener meets it: well, refusing, hanging, or gone."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Dashboard:
    """Answers with `status`; None means that it accepts connections and never answers."""

    status: int | None = 200
    reports: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    tokens: set[str] = field(default_factory=set)
    port: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for report in self.reports for event in report["events"]]

    @contextmanager
    def serving(self) -> Iterator["Dashboard"]:
        """Serves at the same port each time, until the block ends."""
        server = ThreadingHTTPServer(("127.0.0.1", self.port), handler_of(self))
        server.daemon_threads = True
        self.port = server.server_address[1]
        self.over.clear()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.over.set()
            server.shutdown()
            server.server_close()
            thread.join()


def handler_of(dashboard: Dashboard) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            dashboard.asked += 1
            dashboard.tokens.add(self.headers["Authorization"])
            if dashboard.status is None:
                dashboard.over.wait()
                return
            if dashboard.status == 200:
                dashboard.reports.append(json.loads(body))
            self.send_response(dashboard.status)
            if dashboard.status == 302:
                self.send_header("Location", f"{dashboard.url}/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            """Counts a redirect that was followed."""
            dashboard.asked += 1

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    return Handler
