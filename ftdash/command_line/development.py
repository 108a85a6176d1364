"""Runs the author's pipeline for `ftdash dev`, shows it, and restarts it when its code changes.

Each change of the code ends the process with a savepoint and starts a new one from it. The point to
start from is kept until a later run has a newer one, so code that does not load loses nothing. To
notice a change, this process looks at the files of the author's package; it never imports their
code.

The one page is served by Django's development server on this machine only. It needs no database, no
session and no sign-in: it changes nothing, and answers only requests that name this machine, so
that no other site can read it through a browser.

Source: Django's StatReloader, which looks at modification times; here of one package.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any

import msgspec
from django.conf import settings
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.template.loader import render_to_string
from django.utils.autoreload import StatReloader

from ftdash.ui.pipelines.dataflow import layers
from pipelines.disk.files import replace_atomically
from pipelines.domain.errors import Rejected
from pipelines.domain.status import JobStatus
from pipelines.local.view import TASK_FILE, VIEW_FILE, Task, VertexSeen, View

LINES_SHOWN = 200
SAVEPOINT_TIMEOUT_S = 30.0
"""How long the end of a run may take. After that, its newest checkpoint starts the next run."""
_VIEW = msgspec.json.Decoder(View)


class AuthorProcess:
    """Runs one process at a time. Call `end`, then `close`, before you leave."""

    def __init__(self, task: Task, show: Callable[[str], object]) -> None:
        """`show` gets each line that the process prints, on another thread."""
        self._task = task
        self._show = show
        self._folder = tempfile.TemporaryDirectory(prefix="ftdash-dev-")
        self._process: subprocess.Popen[str] | None = None
        self._printed: deque[str] = deque(maxlen=LINES_SHOWN)
        self.restore_from = task.restore_from  # what the next process starts from
        replace_atomically(self._place(VIEW_FILE), msgspec.json.encode(View()))

    def start(self) -> None:
        """Load the code as it is now, and run it from the newest point."""
        task = msgspec.structs.replace(self._task, restore_from=self.restore_from)
        replace_atomically(self._place(VIEW_FILE), msgspec.json.encode(View()))
        replace_atomically(self._place(TASK_FILE), msgspec.json.encode(task))
        self._printed.clear()
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-m", "pipelines.local.development", self._folder.name],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process, which takes a savepoint first
        )
        pipe = self._process.stdout
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def restart(self) -> None:
        self.end()
        self.start()

    def end(self) -> None:
        """Ends the process, with a savepoint if possible; notes where the next one starts."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(SAVEPOINT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.restore_from = next_start(self.written(), self.restore_from)

    def close(self) -> None:
        self._folder.cleanup()

    def view(self) -> View:
        """Returns what the process has written, with its failure if it could not write that."""
        view, process = self.written(), self._process
        code = None if process is None else process.poll()
        if not code or view.problem:
            return view
        problem = f"The process ended with status {code}; its last lines are below."
        return msgspec.structs.replace(view, status=JobStatus.FAILED, problem=problem)

    def written(self) -> View:
        return _VIEW.decode(self._place(VIEW_FILE).read_bytes())

    def printed(self) -> list[str]:
        """Returns the last lines of its output."""
        return list(self._printed)

    def _place(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            self._printed.append(line.rstrip("\n"))
            self._show(line)


def next_start(view: View, before: str | None) -> str | None:
    if view.savepoint is not None:
        return view.savepoint
    if view.status == JobStatus.FINISHED:
        return None  # the sources ended, so that the next run reads them again
    if view.checkpoint is not None and Path(view.checkpoint.path).is_dir():
        return view.checkpoint.path
    return before


def _environment() -> dict[str, str]:
    """The shell is the author's own, so that its variables need no permission.

    The author's folder comes first, as with `python -m`.
    """
    path = filter(None, [str(settings.BASE_DIR), os.environ.get("PYTHONPATH", "")])
    own = {name: os.environ[name] for name in os.environ.keys() - settings.NEVER_PASSED}
    return {**own, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


EVERY_MODULE = "**/*.py"


class AuthorFiles(StatReloader):
    """The modules of the package that `reference` (package.module:NAME) begins with."""

    def __init__(self, reference: str, directory: Path) -> None:
        """Raises Rejected when there is no such package in `directory` or on the path."""
        super().__init__()
        package = reference.partition(":")[0].partition(".")[0]
        spec = PathFinder.find_spec(package, [str(directory), *sys.path])
        if spec is None:
            raise Rejected(
                f"There is no module {package}; start the command in the folder that holds it,"
                " install its package, or put its folder on PYTHONPATH."
            )
        places = [Path(each) for each in spec.submodule_search_locations or ()]
        for place in places:
            self.watch_dir(place, EVERY_MODULE)
        if not places and spec.origin is not None:
            self.extra_files.add(Path(spec.origin))
        self._seen = self._newest = self.now()

    def now(self) -> dict[Path, float]:
        """{file: when it was changed}"""
        return dict(self.snapshot_files())

    def watched_files(self, include_globs: bool = True) -> Iterator[Path]:
        """Unlike Django's reloader, leaves out the modules of this process."""
        yield from self.extra_files
        for directory, patterns in self.directory_globs.items():
            for pattern in patterns:
                yield from directory.glob(pattern)

    def have_changed(self) -> bool:
        """Returns True if files were changed, added or removed since this last returned True.

        Returns False while files are still being written: two looks must agree.
        """
        found = self.now()
        is_settled, self._newest = found == self._newest, found
        if found == self._seen or not is_settled:
            return False
        self._seen = found
        return True


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
    """Serves the page inside the context; yields the port. Raises OSError if the port is taken."""
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
