"""The one page of `ftdash dev`, served by Django's development server on this machine only.

Needs no database, no session and no sign-in: it changes nothing, and answers only requests that
name this machine, so that no other site can read it through a browser.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.template.loader import render_to_string

from ftdash.command_line.development.author_process import AuthorProcess
from ftdash.ui.pipelines.dataflow import layers
from pipelines.local.view import VertexSeen, View

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
BOX_WIDTH, BOX_HEIGHT = 200, 64
STEP_X, STEP_Y = 260, 84
MARGIN = 8
HEADERS = [
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self';"
     " connect-src 'self'; img-src 'self'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
]  # fmt: skip
FILES = {
    "/base.css": ("css/base.css", "text/css"),
    "/pages.css": ("css/pages.css", "text/css"),
    "/development.js": ("js/development.js", "text/javascript"),
    "/mark.svg": ("img/mark.svg", "image/svg+xml"),
}
StartResponse = Callable[[str, list[tuple[str, str]]], object]


@dataclass(frozen=True, slots=True)
class Box:
    """A chain of operators in the drawing."""

    vertex: VertexSeen
    x: float
    y: float


class QuietHandler(WSGIRequestHandler):
    """The page asks every second; a line for each would bury what the author prints."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(process: AuthorProcess, flow: str, port: int) -> Iterator[int]:
    """Serve the page within; the port. Raises OSError when the port is taken."""
    server = ThreadedWSGIServer((HOST, port), QuietHandler)
    server.daemon_threads = True
    server.set_app(lambda environ, start: _answer(process, flow, environ, start))
    thread = threading.Thread(target=server.serve_forever, name="page", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _answer(
    process: AuthorProcess, flow: str, environ: dict[str, Any], start: StartResponse
) -> list[bytes]:
    status, kind, body = _content(process, flow, environ)
    start(f"{status.value} {status.phrase}", [("Content-Type", kind), *HEADERS])
    return [body]


def _content(
    process: AuthorProcess, flow: str, environ: dict[str, Any]
) -> tuple[HTTPStatus, str, bytes]:
    host, path = environ.get("HTTP_HOST", "").partition(":")[0], environ["PATH_INFO"]
    if host not in NAMES:
        return HTTPStatus.FORBIDDEN, "text/plain", b"Open the address that the command printed.\n"
    if environ["REQUEST_METHOD"] != "GET":
        return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"This page only shows.\n"
    if path in FILES:
        file, kind = FILES[path]
        return HTTPStatus.OK, kind, (Path(settings.FILES_DIR) / "static" / file).read_bytes()
    if path == "/view.json":
        return HTTPStatus.OK, "application/json", msgspec.json.encode(process.view())
    if path in ("/", "/view"):
        template = "page.html" if path == "/" else "view.html"
        text = render_to_string(f"development/{template}", _shown(process, flow))
        return HTTPStatus.OK, "text/html; charset=utf-8", text.encode()
    return HTTPStatus.NOT_FOUND, "text/plain", b"There is one page, at /.\n"


def _shown(process: AuthorProcess, flow: str) -> dict[str, Any]:
    view = process.view()
    boxes = _boxes(view)
    places = {box.vertex.uid: box for box in boxes}
    return {
        "flow": flow,
        "view": view,
        "kept": process.restore_from,
        "printed": "\n".join(process.printed()),
        "boxes": boxes,
        "lines": [
            (places[source], places[box.vertex.uid])
            for box in boxes
            for source in box.vertex.inputs
        ],
        "box_width": BOX_WIDTH,
        "box_height": BOX_HEIGHT,
        "middle": BOX_HEIGHT // 2,
        "width": max((box.x + BOX_WIDTH + MARGIN for box in boxes), default=0),
        "height": max((box.y + BOX_HEIGHT + MARGIN for box in boxes), default=0),
    }


def _boxes(view: View) -> list[Box]:
    vertices = {each.uid: each for each in view.vertices}
    placed = layers({uid: each.inputs for uid, each in vertices.items()})
    return [
        Box(vertices[stop[0]], MARGIN + column * STEP_X, MARGIN + row * STEP_Y)
        for column, stops in enumerate(placed.columns)
        for row, stop in enumerate(stops)
        if len(stop) == 1
    ]
