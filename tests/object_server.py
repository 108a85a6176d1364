"""A real S3 server in a process of its own, behind a proxy that injects failures.

The proxy, called the door, passes every request on and numbers it; a fault strikes the requests
that the test names. Like S3, and unlike the server behind it, the door compares a body with the
checksum that came with it.
"""

import base64
import hashlib
import http.client
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ftdash.embedded.installation import LOOPBACK
from tests.polling import wait_until
from tests.reserved_ports import reserved_port

BUCKET = "snapshots"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key-of-a-test", "AWS_SECRET_ACCESS_KEY": "secret-of-a-test"}
ANYBODY = "AWS4-HMAC-SHA256 Credential=anybody/20260101/us-east-1/s3/aws4_request"
HOP_BY_HOP = ("transfer-encoding", "connection", "content-length")


class Fault(Enum):
    SERVER_ERROR = auto()
    SLOW_DOWN = auto()  # too many requests: it answers 503 and carries nothing out
    DENIED = auto()
    CUT_UPLOAD = auto()  # the connection breaks before the body is read; nothing is stored
    LOST_ANSWER = auto()  # the request is carried out; its answer never arrives
    CUT_ANSWER = auto()  # half of the body of the answer arrives
    SLOW = auto()  # carried out after the client has stopped waiting
    ALTERED = auto()  # one bit of the body flips on its way
    NO_BUCKET = auto()  # as while a store is being set up again: 404, but not because of the object
    ELSEWHERE = auto()  # something else answers in place of the store and does not know it


@dataclass(frozen=True, slots=True)
class Request:
    number: int  # from 1, since `plan` was last set
    method: str
    path: str
    length: int  # bytes of the body


Plan = Callable[[Request], Fault | None]


def never(request: Request) -> Fault | None:
    return None


def on_number(number: int, fault: Fault) -> Plan:
    return lambda request: fault if request.number == number else None


def from_number(number: int, fault: Fault) -> Plan:
    return lambda request: fault if request.number >= number else None


def on_path(part: str, fault: Fault, *, method: str = "PUT") -> Plan:
    return lambda r: fault if part in r.path and r.method == method else None


def once(plan: Plan) -> Plan:
    """Strikes only the first request that the plan names."""
    struck: list[Request] = []

    def strike(request: Request) -> Fault | None:
        fault = None if struck else plan(request)
        if fault is not None:
            struck.append(request)
        return fault

    return strike


@dataclass(slots=True)
class ObjectServer:
    """`plan` may be changed at any time; `requests` holds those since the last change."""

    server: tuple[str, int]
    slow_s: float = 1.2
    requests: list[Request] = field(default_factory=list)
    _plan: Plan = never
    _lock: threading.Lock = field(default_factory=threading.Lock)
    port: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{self.port}",
            "AWS_REGION": "us-east-1",
        }

    def new_root(self) -> str:
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def plan(self, plan: Plan) -> None:
        with self._lock:
            self._plan, self.requests = plan, []

    def fault_for(self, method: str, path: str, length: int) -> Fault | None:
        with self._lock:
            request = Request(len(self.requests) + 1, method, path, length)
            self.requests.append(request)
            return self._plan(request)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Asks the server itself, behind the door."""
        connection = http.client.HTTPConnection(*self.server, timeout=20)
        try:
            connection.request(method, path, body, headers or {"authorization": ANYBODY})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    with reserved_port() as port, _server_process(port) as process:
        server = ObjectServer((LOOPBACK, port))
        wait_until(lambda: _has_bucket(server, process), otherwise=lambda: "the server was silent")
        door = _Door((LOOPBACK, 0), _handler_of(server))
        server.port = door.server_address[1]
        threading.Thread(target=door.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            door.shutdown()
            door.server_close()


@contextmanager
def _server_process(port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)]
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _has_bucket(server: ObjectServer, process: subprocess.Popen[bytes]) -> bool:
    """Creates the bucket as soon as the server answers. Returns True if it did."""
    assert process.poll() is None, "the object server has ended"
    try:
        answer, _ = server.ask("PUT", f"/{BUCKET}")
    except ConnectionRefusedError:
        return False
    return answer.status == http.HTTPStatus.OK


class _Door(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a client that hung up, which is part of these tests."""


def _handler_of(server: ObjectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            fault = server.fault_for(self.command, self.path, length)
            if fault is Fault.CUT_UPLOAD:
                self.rfile.read(length // 2)
                self.reset()
                return
            body = self.rfile.read(length)
            if fault is Fault.ALTERED and body:
                body = bytes([body[0] ^ 1]) + body[1:]
            if fault is Fault.SERVER_ERROR:
                self.answer(500, [], b"")
            elif fault is Fault.SLOW_DOWN:
                self.answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            elif fault is Fault.DENIED:
                self.answer(403, [], b"<Error><Code>AccessDenied</Code></Error>")
            elif fault is Fault.NO_BUCKET:
                self.answer(404, [], b"<Error><Code>NoSuchBucket</Code></Error>")
            elif fault is Fault.ELSEWHERE:
                self.answer(404, [], b"<html>Not found</html>")
            elif _is_altered(self.headers.get("x-amz-checksum-sha256"), body):
                self.answer(400, [], b"<Error><Code>BadDigest</Code></Error>")
            else:
                self.pass_on(body, fault)

        def pass_on(self, body: bytes, fault: Fault | None) -> None:
            answer, content = server.ask(self.command, self.path, body, dict(self.headers))
            if fault is Fault.SLOW:
                time.sleep(server.slow_s)
            if fault is Fault.LOST_ANSWER:
                self.reset()
                return
            cut = fault is Fault.CUT_ANSWER
            self.answer(answer.status, answer.getheaders(), content, cut=cut)

        def answer(
            self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False
        ) -> None:
            lengths = [v for name, v in headers if name.lower() == "content-length"]
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            is_head = self.command == "HEAD"
            length = lengths[0] if is_head and lengths else str(len(content))
            self.send_header("content-length", length)
            self.end_headers()
            if not is_head:
                self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.reset()

        def reset(self) -> None:
            self.close_connection = True
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.wfile.flush()
            self.connection.close()

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing."""

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

    return Handler


def _is_altered(checksum: str | None, body: bytes) -> bool:
    if checksum is None:
        return False
    return base64.b64decode(checksum) != hashlib.sha256(body).digest()
