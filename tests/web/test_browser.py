"""The dashboard in a real browser: live without reloading, honest when cut, never in the way."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Response, expect, sync_playwright
from tenacity import retry, stop_after_delay, wait_fixed

from ftdash.embedded.ports import LOOPBACK, free_port

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("FTDASH_CHROMIUM") or shutil.which("chromium")
PATIENCE_MS = 20_000
START_PATIENCE_S = 60
COLLECT_CHECKPOINTS = """() => {
  window.arrived = [];
  new MutationObserver(() => {
    const newest = Number(document.querySelector("#region-history tr.is-chosen a").textContent);
    if (window.arrived.at(-1) !== newest) window.arrived.push(newest);
  }).observe(document.querySelector("#checkpoints"), { childList: true, subtree: true });
}"""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH and no FTDASH_CHROMIUM"),
]


def test_a_checkpoint_arrives_without_reloading(page: Page) -> None:
    page.evaluate("window.loadedOnce = true")
    page.evaluate(COLLECT_CHECKPOINTS)

    page.wait_for_function("() => window.arrived.length > 5", timeout=PATIENCE_MS)

    arrived = page.evaluate("window.arrived")
    # The stream brings nearly each one; a page that only asks by itself sees every third.
    assert len(arrived) - 1 > 0.6 * (arrived[-1] - arrived[0])
    assert page.evaluate("window.loadedOnce") is True
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "fresh")
    expect(page.locator("#chart-alignment .plot svg.main-svg").first).to_be_visible()
    expect(page.locator("#sentence-alignment")).to_contain_text("the slowest was")


def test_a_savepoint_is_asked_for_and_its_request_is_seen(page: Page) -> None:
    open_dialog(page, "savepoint")
    expect(page.locator("dialog .consequence")).to_contain_text("A savepoint is written")
    page.fill("dialog #id_reason", "before the upgrade")
    page.click("dialog button[type=submit]")

    row = page.locator("#region-requests tr", has_text="before the upgrade")
    expect(row).to_contain_text("Savepoint", timeout=PATIENCE_MS)
    expect(row).to_contain_text("admin")
    expect(page.locator("dialog")).to_be_hidden()
    expect(page.locator("#region-progress")).to_contain_text("asked by admin")


def test_a_refusal_stays_in_the_dialog_with_what_was_typed(page: Page) -> None:
    open_dialog(page, "kill")
    page.fill("dialog #id_reason", "game day")
    page.fill("dialog #id_confirmation", "flihgt_delays")
    page.click("dialog button[type=submit]")

    expect(page.locator("dialog .errorlist")).to_have_text(
        "The name of this pipeline is flight_delays."
    )
    expect(page.locator("dialog #id_reason")).to_have_value("game day")


def test_a_truncated_savepoint_is_refused_before_and_behind_the_button_and_a_whole_one_is_not(
    page: Page, site: "Site"
) -> None:
    page.goto(site.address + "/pipelines/views/")
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "fresh", timeout=PATIENCE_MS)
    page.locator("#region-points a.button", has_text="Restore").first.click()
    verdict = page.locator("dialog #verdict")
    expect(verdict).to_contain_text("It cannot be restored.", timeout=PATIENCE_MS)
    expect(verdict.locator("[data-outcome=refused]").first).to_contain_text("it was truncated.")

    page.fill("dialog #id_reason", "game day")
    page.fill("dialog #id_confirmation", "views")
    page.click("dialog button[type=submit]")

    refusal = page.locator("dialog .refusal")
    expect(refusal).to_contain_text("into 'views': ", timeout=PATIENCE_MS)
    expect(refusal).to_contain_text("it was truncated.")
    page.select_option("dialog #id_path", index=1)
    expect(verdict).to_contain_text("It can be restored.", timeout=PATIENCE_MS)
    expect(verdict).to_contain_text("Every byte of them was read", timeout=PATIENCE_MS)


def test_a_refresh_does_not_disturb_who_is_typing_or_reading(page: Page) -> None:
    open_dialog(page, "savepoint")
    page.locator("dialog #id_reason").press_sequentially("before", delay=250)
    wait_for_next_checkpoint(page)
    page.locator("dialog #id_reason").press_sequentially(" lunch", delay=250)

    expect(page.locator("dialog #id_reason")).to_have_value("before lunch")
    page.click("dialog [data-close]")
    page.click("#details-alignment summary")
    wait_for_next_checkpoint(page)
    expect(page.locator("#details-alignment")).to_have_attribute("open", "")
    page.locator("#sentence-throughput").select_text()
    selected = page.evaluate("getSelection().toString()")
    wait_for_next_checkpoint(page)
    assert page.evaluate("getSelection().toString()") == selected != ""


def test_a_chosen_checkpoint_stays_while_newer_ones_come(page: Page) -> None:
    page.locator("#region-history tbody tr:nth-child(4) a").click()
    expect(page.locator("#follow-newest")).to_be_visible(timeout=PATIENCE_MS)
    heading = page.locator("#alignment-title")
    chosen = heading.inner_text()

    wait_for_next_checkpoint(page)

    expect(heading).to_have_text(chosen)
    page.click("#follow-newest")
    expect(heading).not_to_have_text(chosen, timeout=PATIENCE_MS)


def test_with_the_stream_cut_the_page_asks_by_itself(site: "Site", browser: Browser) -> None:
    page = browser.new_page()
    page.route("**/changes/", lambda route: route.abort())
    sign_in(page, site)

    wait_for_next_checkpoint(page)
    wait_for_next_checkpoint(page)
    page.close()


def test_without_a_connection_the_page_says_how_old_its_data_is(page: Page, site: "Site") -> None:
    page.evaluate("window.loadedOnce = true")
    site.stop_web()

    banner = page.locator("#offline")
    expect(banner).to_be_visible(timeout=PATIENCE_MS)
    expect(banner).to_contain_text("No connection: this page shows the state of")
    expect(banner).to_contain_text("UTC")
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "cut")
    expect(page.locator("#freshness")).to_contain_text("old")

    site.start_web()
    expect(banner).to_be_hidden(timeout=PATIENCE_MS)
    wait_for_next_checkpoint(page)
    assert page.evaluate("window.loadedOnce") is True


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_clean_in_the_console(site: "Site", browser: Browser, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    said = complaints_of(page)
    sign_in(page, site)
    wait_for_next_checkpoint(page)
    page.hover("#chart-alignment .plot .barlayer path >> nth=0", force=True)
    for address in (
        "/",
        "/pipelines/flight_delays/metrics/",
        "/pipelines/flight_delays/recovery/",
        "/pipelines/flight_delays/planner/?interval_s=3",
        "/pipelines/flight_delays/cancel/",
        "/pipelines/flight_delays/guarantee/",
        "/start/?flow=page_view_count",
    ):
        page.goto(site.address + address)

    assert said == []
    page.close()


@dataclass
class Site:
    """A simulated pipeline and a web server on one home."""

    home: Path
    port: int
    web: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        nowhere = f"redis://{LOOPBACK}:{free_port()}/0"
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "ftdash.settings",
            "FTDASH_HOME": str(self.home),
            "FTDASH_REDIS_URL": nowhere,
        }

    def start_web(self) -> None:
        command = ["uvicorn", "ftdash.asgi:application", "--port", str(self.port)]
        self.web = self.start([*command, "--log-level", "warning"])

    def stop_web(self) -> None:
        if self.web is not None:
            end(self.web)

    def start(self, module_and_arguments: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *module_and_arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("home"), free_port())
    collect = [sys.executable, "manage.py", "collectstatic", "--noinput", "-v0"]
    subprocess.run(collect, cwd=ROOT, env=site.environment, check=True, timeout=START_PATIENCE_S)
    pipeline = site.start(["tests.web.simulated_site", "--history", "24"])
    try:
        assert pipeline.stdout is not None
        assert pipeline.stdout.readline() == b"ready\n"
        site.start_web()
        yield site
    finally:
        end(pipeline)
        site.stop_web()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    sign_in(page, site)
    yield page
    page.close()


def sign_in(page: Page, site: Site) -> None:
    address = site.address + "/login/?next=/pipelines/flight_delays/"
    go_when_up(page, address)
    page.fill("#id_username", "admin")
    page.fill("#id_password", "admin")
    page.click("button[type=submit]")
    expect(page.locator("h1")).to_contain_text("flight_delays")
    wait_until_live(page)


def wait_until_live(page: Page) -> None:
    """Until its scripts have been loaded and have run."""
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "fresh", timeout=PATIENCE_MS)


def go_when_up(page: Page, address: str) -> None:
    """The server may still be starting; the browser asks again until it answers."""
    retry(stop=stop_after_delay(START_PATIENCE_S), wait=wait_fixed(0.2))(page.goto)(address)


def open_dialog(page: Page, action: str) -> None:
    """Press the button once the page's script has run: before, it is a link to another page."""
    wait_until_live(page)
    page.click(f"#act-{action}")


def wait_for_next_checkpoint(page: Page) -> None:
    card = page.locator("#region-numbers .note").first
    before = card.inner_text().split(",")[0]
    expect(card).not_to_contain_text(before + ",", timeout=PATIENCE_MS)


def complaints_of(page: Page) -> list[str]:
    """What the console and the network say that a healthy page never does."""
    said: list[str] = []

    def note_answer(answer: Response) -> None:
        if answer.status >= 400:
            said.append(f"{answer.status} {answer.url}")

    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("response", note_answer)
    return said


def end(process: subprocess.Popen[bytes]) -> None:
    """Streams that are still open would keep a polite server alive."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
