"""Two real web servers behind the proxy of the documentation, with one PostgreSQL."""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ftdash.embedded.installation import LOOPBACK, free_port
from ftdash.logs import HEADER
from tests.compose_host import CONTAINER
from tests.new_home import new_home
from tests.polling import wait_until
from tests.postgres_server import execute

if TYPE_CHECKING:
    from tests.brokers.redis_broker import RedisBroker
    from tests.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("caddy") is None and not os.environ.get("FTDASH_REQUIRE_ALL"),
        reason="there is no caddy; install it",
    ),
]

ROOT = Path(__file__).parents[2]
DOMAIN = "localhost"
NAME, PASSWORD = "ada", "correct-horse-battery"
PAGES = ("/", "/pipelines/flights/", "/events/", "/healthz")
STREAMS_MAX = 10
"""So many reach both servers, even if the proxy passes over a slow one for a while."""

BROWSERS = 3
ENOUGH = 20
"""How many answers each browser gets before the kill, and again after it."""

ANSWER_S = 30.0
START_S = 180.0
"""A busy machine takes this long to start two servers at once."""

PREPARE = f"""
import django; django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from tests.web.journals import new_run
call_command("migrate", verbosity=0)
new_run()
User.objects.create_superuser("{NAME}", password="{PASSWORD}")
"""


@dataclass(slots=True)
class WebServer:
    """A process of `ftdash serve web --json`."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    def client(self, **headers: str) -> httpx.Client:
        """Sends requests as the proxy does."""
        headers = {"Host": DOMAIN, "X-Forwarded-Proto": "https", **headers}
        address = f"http://{LOOPBACK}:{self.port}"
        return httpx.Client(base_url=address, headers=headers, timeout=ANSWER_S, trust_env=False)

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with suppress(httpx.TransportError), self.client() as client:
            return client.get("/healthz").is_success
        return False

    def lines(self) -> list[dict[str, Any]]:
        """Raises an error if a line of the log is no JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def has_answered(self, request: str) -> bool:
        return any(each.get("request") == request for each in self.lines())

    def has_answered_all(self, paths: tuple[str, ...]) -> bool:
        return {each.get("path") for each in self.lines()} >= set(paths)


@dataclass(slots=True)
class Site:
    address: str
    trusted: ssl.SSLContext
    environment: dict[str, str]
    servers: list[WebServer]

    @property
    def database(self) -> str:
        return self.environment["FTDASH_DATABASE_URL"]

    def is_open(self) -> bool:
        with suppress(httpx.TransportError), self.client({}) as client:
            return client.get("/healthz").is_success
        return False

    def client(self, cookies: dict[str, str]) -> httpx.Client:
        """Sends requests through the proxy, and checks its certificate."""
        return httpx.Client(
            base_url=self.address,
            headers={"Cookie": "; ".join(f"{key}={value}" for key, value in cookies.items())},
            verify=self.trusted,
            timeout=ANSWER_S,
            trust_env=False,
        )

    def signed_in_at(self, server: WebServer) -> dict[str, str]:
        """Returns the cookies of a session that begins at this server."""
        with server.client(Referer=f"{self.address}/login/") as client:
            cookies = dict(client.get("/login/").cookies)
            form = {"username": NAME, "password": PASSWORD}
            token = cookies["__Host-csrftoken"]
            headers = {"X-CSRFToken": token, "Cookie": f"__Host-csrftoken={token}"}
            answer = client.post("/login/", data=form, headers=headers)
            assert answer.status_code == 302, answer.text[:500]
            return {**cookies, **answer.cookies}


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: "PostgresServer",
    redis_server: "RedisBroker",
    worker_id: str,
) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    database = f"two_servers_{worker_id}"
    postgres.execute(f'drop database if exists "{database}" with (force)')
    postgres.execute(f'create database "{database}"')
    public = free_port()
    environment = {
        **{key: each for key, each in os.environ.items() if not key.startswith("FTDASH_")},
        "DJANGO_SETTINGS_MODULE": "ftdash.settings",
        "FTDASH_HOME": str(new_home(directory / "home")),
        "FTDASH_DATABASE_URL": postgres.url.rpartition("/")[0] + f"/{database}",
        "FTDASH_REDIS_URL": redis_server.url,
        "FTDASH_ALLOWED_HOSTS": DOMAIN,
        "FTDASH_TRUSTED_ORIGINS": f"https://{DOMAIN}:{public}",
        "FTDASH_TLS": "1",
    }
    subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environment, check=True)
    with ExitStack() as stack:
        servers = []
        for name in ("web1", "web2"):
            port, log = free_port(), directory / f"{name}.log"
            process = stack.enter_context(running(serve_web(port), log, environment))
            servers.append(WebServer(process, port, log))
        for server in servers:
            wait_until(server.is_up, within_s=START_S, otherwise=server.log.read_text)
        file, log = directory / "Caddyfile", directory / "proxy.log"
        file.write_text(with_ports(public, [server.port for server in servers]))
        words = ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)]
        place = {name: str(directory) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        stack.enter_context(running(words, log, {**os.environ, **place, "FTDASH_DOMAIN": DOMAIN}))
        authority = directory / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        wait_until(authority.exists, otherwise=log.read_text)
        trusted = ssl.create_default_context(cafile=str(authority))
        site = Site(f"https://{DOMAIN}:{public}", trusted, environment, servers)
        wait_until(site.is_open, otherwise=log.read_text)
        yield site


def serve_web(port: int) -> list[str]:
    return [sys.executable, "-m", "ftdash", "serve", "web", "--json", "--port", str(port)]


@contextmanager
def running(
    words: list[str], log: Path, environment: dict[str, str]
) -> "Iterator[subprocess.Popen[bytes]]":
    with log.open("wb") as file:
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def with_ports(public: int, servers: list[int]) -> str:
    """Returns the Caddyfile as it is, but with ports of this machine and on loopback only."""
    text = (CONTAINER / "Caddyfile").read_text()
    own = f"http_port {free_port()}\n\thttps_port {public}\n\tdefault_bind {LOOPBACK}"
    addresses = " ".join(f"{LOOPBACK}:{port}" for port in servers)
    for part, replacement in (
        ("admin off", f"admin off\n\t{own}"),
        ("web1:8000 web2:8000", addresses),
    ):
        assert text.count(part) == 1
        text = text.replace(part, replacement)
    return text


def static_files(page: str) -> list[str]:
    return re.findall(r'(?:href|src)="(/static/[^"]+)"', page)


@dataclass
class Browser:
    """Asks for pages and static files, one after the other, until `is_over`."""

    client: httpx.Client
    is_over: threading.Event
    statuses: list[int] = field(default_factory=list)
    cut_short: int = 0
    """Answers that began with a status and that the death of their server then cut."""

    def run(self) -> None:
        with self.client as client:
            files = static_files(client.get("/").text)
            while not self.is_over.is_set():
                for path in (*PAGES, *files):
                    self._ask(client, path)

    def _ask(self, client: httpx.Client, path: str) -> None:
        with client.stream("GET", path) as answer:
            self.statuses.append(answer.status_code)
            try:
                answer.read()
            except (httpx.RemoteProtocolError, httpx.ReadError):
                self.cut_short += 1


@dataclass
class EventSource:
    """Opens a stream again whenever it is cut. As in a browser, any status but 200 is the end."""

    client: httpx.Client
    is_over: threading.Event
    name: str
    openings: list[tuple[int, str]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The name of the first request."""
        return f"{self.name}-0"

    def run(self) -> None:
        with self.client as client:
            while not self.is_over.is_set() and all(code == 200 for code, _ in self.openings):
                with suppress(httpx.TransportError):
                    self._listen(client)

    def _listen(self, client: httpx.Client) -> None:
        request = f"{self.name}-{len(self.openings)}"
        headers = {"Accept": "text/event-stream", HEADER: request}
        with client.stream("GET", "/changes/", headers=headers) as answer:
            kind = answer.headers["Content-Type"].partition(";")[0]
            self.openings.append((answer.status_code, kind))
            event = ""
            for line in answer.iter_lines():
                if self.is_over.is_set():
                    return
                name, _, text = line.partition(": ")
                if name == "event":
                    event = text
                elif name == "data" and event == "changed":
                    self.versions |= json.loads(text)


def test_people_notice_nothing_when_one_of_two_servers_is_killed(site: Site) -> None:
    killed, other = site.servers
    cookies = site.signed_in_at(killed)
    is_over = threading.Event()
    streams: list[EventSource] = []
    browsers = [Browser(site.client(cookies), is_over) for _ in range(BROWSERS)]
    with ThreadPoolExecutor(STREAMS_MAX + BROWSERS) as threads:
        tasks: list[Future[None]] = []

        def wait_for(holds: Callable[[], bool]) -> None:
            """Waits no longer than all clients go on: their results then say what ended one."""
            wait_until(lambda: holds() or any(task.done() for task in tasks))

        try:
            while len({killed.has_answered(each.first) for each in streams}) < 2:
                assert len(streams) < STREAMS_MAX
                stream = EventSource(site.client(cookies), is_over, f"stream-{len(streams)}")
                streams.append(stream)
                tasks.append(threads.submit(stream.run))
                wait_for(lambda stream=stream: "flights" in stream.versions)  # type: ignore[misc]
            of_killed = [each for each in streams if killed.has_answered(each.first)]
            of_other = [each for each in streams if other.has_answered(each.first)]
            tasks += [threads.submit(browser.run) for browser in browsers]
            wait_for(lambda: all(len(browser.statuses) >= ENOUGH for browser in browsers))
            wait_for(lambda: killed.has_answered_all(PAGES))
            before = streams[0].versions["flights"]

            killed.process.kill()
            wait_for(lambda: all(len(each.openings) > 1 for each in of_killed))
            execute(site.database, "update jobs_run set version = version + 1")

            wait_for(lambda: all(each.versions["flights"] != before for each in streams))
            wanted = [len(browser.statuses) + ENOUGH for browser in browsers]
            wait_for(
                lambda: all(len(b.statuses) >= n for b, n in zip(browsers, wanted, strict=True))
            )
        finally:
            is_over.set()
    for task in tasks:
        task.result()

    for browser in browsers:
        assert set(browser.statuses) == {200}
        assert browser.cut_short <= 1
    sent = (200, "text/event-stream")
    assert [each.openings for each in of_killed] == [[sent, sent]] * len(of_killed)
    assert [each.openings for each in of_other] == [[sent]] * len(of_other)


def test_each_line_of_a_server_that_logs_json_is_an_object_with_its_request(site: Site) -> None:
    name = "from-the-proxy-1"
    with site.client({}) as client:
        [file, *_] = static_files(client.get("/login/").text)
        paths = ("/healthz", "/nowhere/", file)  # Django warns about how WhiteNoise sends a file
        answers = [client.get(path, headers={HEADER: name}) for path in paths]

    lines = [line for server in site.servers for line in server.lines()]

    assert {each.headers[HEADER] for each in answers} == {name}
    assert {each["message"] for each in lines if each.get("request") == name} == {
        *("GET /healthz", "GET /nowhere/", "Not Found: /nowhere/", f"GET {file}")
    }
    assert {each["logger"] for each in lines if "request" not in each} == {"py.warnings"}
    assert {each["process"] for each in lines} == {"web"}


def test_a_server_whose_clock_differs_from_that_of_postgresql_does_not_start(site: Site) -> None:
    words = ["faketime", "-f", "-1h", *serve_web(free_port())]
    ran = subprocess.run(
        words, cwd=ROOT, env=site.environment, capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1), ran.stderr
    assert "s apart from that of the database server. Let a time service" in ran.stderr
