"""A schema registry for tests: the part of Confluent's REST interface that ftdash uses.

Its limits: it keeps schemas in memory, takes any text as a schema, and compares nothing. No schema
is compatible with a subject named in `refused`. ftdash sends no other requests to a real registry.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from ftdash.embedded.installation import LOOPBACK

NO_SCHEMA, NO_SUBJECT, NO_VERSION = 40403, 40401, 40402
INVALID = 42201


@dataclass(slots=True)
class Registry:
    """`asked` records each request. `status` is its answer to all requests; None means it works."""

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    status: int | None = None

    def add(self, schema: str, kind: str = "AVRO", *, subject: str = "s", **more: Any) -> int:
        """Adds a schema and returns its id."""
        given = {"schema": schema, "schemaType": kind, **more}
        if given not in self.schemas:
            self.schemas.append(given)
        number = self.schemas.index(given) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(f"{method} {path}")
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "as the test wants"}
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                return self._schema(int(number))
            case ["subjects", subject, "versions"] if method == "POST":
                kind = body.get("schemaType", "AVRO")
                return 200, {"id": self.add(body["schema"], kind, subject=subject)}
            case ["subjects", subject, "versions", version]:
                return self._version(subject, int(version))
            case ["compatibility", "subjects", subject, "versions", _]:
                if subject not in self.subjects:
                    return 404, {"error_code": NO_SUBJECT, "message": "Subject not found."}
                return 200, {"is_compatible": subject not in self.refused}
        return 404, {"error_code": 404, "message": "no such address"}

    def _schema(self, number: int) -> tuple[int, dict[str, Any]]:
        if not 1 <= number <= len(self.schemas):
            return 404, {"error_code": NO_SCHEMA, "message": "Schema not found"}
        return 200, self.schemas[number - 1]

    def _version(self, subject: str, version: int) -> tuple[int, dict[str, Any]]:
        versions = self.subjects.get(subject, [])
        if not 1 <= version <= len(versions):
            return 404, {"error_code": NO_VERSION, "message": "Version not found."}
        number = versions[version - 1]
        told = {"subject": subject, "version": version, "id": number}
        return 200, {**told, **self.schemas[number - 1]}


@contextmanager
def schema_registry() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("GET", {})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._reply("POST", json.loads(self.rfile.read(length)))

        def _reply(self, method: str, body: dict[str, Any]) -> None:
            status, answer = registry.answer(method, urlsplit(self.path).path, body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    registry.url = f"http://{LOOPBACK}:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
