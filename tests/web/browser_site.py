"""A dashboard for the browser tests: a simulated pipeline, a web server and a browser."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, Response, expect, sync_playwright
from tenacity import retry, stop_after_delay, wait_fixed

from ftdash.embedded.installation import LOOPBACK
from tests.new_home import new_home
from tests.polling import wait_until
from tests.reserved_ports import reserved_port

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("FTDASH_CHROMIUM") or shutil.which("chromium")
PIPELINE = "/pipelines/flight_delays/"
PATIENCE_MS = 100_000
START_PATIENCE_S = 120
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

ALL_DRAWN = """() => [...document.querySelectorAll(".plot:not([hidden])")].every(
  (plot) => plot.querySelector("svg.main-svg"))"""

expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Site:
    """A simulated pipeline and a web server on one home, and no Redis."""

    home: Path
    port: int
    nowhere: int  # a port where no server listens
    web: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.web.quick_hashes",
            "FTDASH_HOME": str(self.home),
            "FTDASH_WATCH_ROOTS": str(self.home / "watched"),
            "FTDASH_REDIS_URL": f"redis://{LOOPBACK}:{self.nowhere}/0",
        }

    def silence(self, *who: str) -> None:
        """Silences those named among driver, projector and worker; the others still report."""
        (self.home / "silent").write_text(" ".join(who))

    def start_web(self) -> None:
        command = ["uvicorn", "ftdash.asgi:application", "--port", str(self.port)]
        self.web = self.start([*command, "--log-level", "warning"])
        wait_until(self.is_up, within_s=START_PATIENCE_S)

    def is_up(self) -> bool:
        """Costs less than to have a browser try, which shows a page about each failure."""
        with suppress(ConnectionRefusedError), socket.create_connection((LOOPBACK, self.port)):
            return True
        return False

    def stop_web(self) -> None:
        if self.web is not None:
            end(self.web)

    def start(
        self, module_and_arguments: list[str], stdout: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *module_and_arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=stdout,
        )


@contextmanager
def simulated_dashboard(home: Path, *options: str) -> Iterator[Site]:
    """Starts a dashboard. `options` are those of the simulated site."""
    with reserved_port() as port, reserved_port() as nowhere:
        yield from _simulated(Site(home, port, nowhere), options)


def _simulated(site: Site, options: tuple[str, ...]) -> Iterator[Site]:
    new_home(site.home)
    simulated = ["tests.web.simulated_site", "--history", "24", *options]
    pipeline = site.start(simulated, stdout=subprocess.PIPE)
    try:
        if pipeline.stdout is None or pipeline.stdout.readline() != b"ready\n":
            raise RuntimeError("the simulated pipeline did not come up")
        site.start_web()
        yield site
    finally:
        end(pipeline)
        site.stop_web()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def sign_in(page: Page, site: Site) -> None:
    page.context.set_default_timeout(PATIENCE_MS)
    go_when_up(page, f"{site.address}/login/?next={PIPELINE}")
    page.fill("#id_username", "admin")
    page.fill("#id_password", "admin")
    page.click("button[type=submit]")
    expect(page.locator("h1")).to_contain_text("flight_delays")
    wait_until_live(page)


def open_pipeline(page: Page, site: Site) -> None:
    """Opens the pipeline in a browser that has signed in."""
    page.context.set_default_timeout(PATIENCE_MS)
    page.goto(site.address + PIPELINE)
    wait_until_live(page)


def wait_until_live(page: Page) -> None:
    """Waits until the page's scripts have loaded and run."""
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "fresh")


def draw_all(page: Page) -> None:
    """Draws the charts that are out of sight, too; a page draws them when they come near."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(ALL_DRAWN, timeout=PATIENCE_MS)


def go_when_up(page: Page, address: str) -> None:
    """Opens the page; asks again until the server, which may still be starting, answers."""
    retry(stop=stop_after_delay(START_PATIENCE_S), wait=wait_fixed(0.2))(page.goto)(address)


def complaints_of(page: Page) -> list[str]:
    """Returns the errors from console and network that a healthy page never causes."""
    said: list[str] = []

    def note_answer(answer: Response) -> None:
        if answer.status >= 400:
            said.append(f"{answer.status} {answer.url}")

    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("response", note_answer)
    return said


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process, because open streams would keep a polite server alive."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
