"""The dashboard in a real browser: live without reloading, honest when cut, never in the way."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.web.browser_site import (
    CHROMIUM,
    PATIENCE_MS,
    Site,
    sign_in,
    wait_until_live,
)

COLLECT_CHECKPOINTS = """() => {
  window.arrived = [];
  new MutationObserver(() => {
    const newest = Number(document.querySelector("#region-history tr.is-chosen a").textContent);
    if (window.arrived.at(-1) !== newest) window.arrived.push(newest);
  }).observe(document.querySelector("#checkpoints"), { childList: true, subtree: true });
}"""

HISTORY = "document.querySelector('#region-history .scroll')"
"""Found and used in one go: between the two of a locator the region may be replaced."""

STEPS_MAX = 200
FIVE_SECONDS_MS = 5_000

NEVER_ASKS_BY_ITSELF = """
  const repeat = window.setInterval;
  window.setInterval = (turn, ms) => (ms === 250 ? 0 : repeat(turn, ms));  // TICK_MS of live.js
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH and no FTDASH_CHROMIUM"),
]


def test_a_checkpoint_arrives_without_reloading(dashboard: Site, browser: Browser) -> None:
    page = browser.new_page()
    page.add_init_script(NEVER_ASKS_BY_ITSELF)
    sign_in(page, dashboard)
    page.evaluate("window.loadedOnce = true")
    page.evaluate(COLLECT_CHECKPOINTS)

    page.wait_for_function("() => window.arrived.length > 3", timeout=PATIENCE_MS)

    assert page.evaluate("window.loadedOnce") is True
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "fresh")
    expect(page.locator("#chart-alignment .plot svg.main-svg").first).to_be_visible()
    expect(page.locator("#sentence-alignment")).to_contain_text("the slowest was")
    page.close()


def test_a_savepoint_is_asked_for_and_its_request_is_seen(page: Page) -> None:
    open_dialog(page, "savepoint")
    expect(page.locator("dialog .consequence")).to_contain_text("A savepoint is written")
    page.fill("dialog #id_reason", "before the upgrade")
    page.click("dialog button[type=submit]")

    row = page.locator("#region-requests tr", has_text="before the upgrade")
    expect(row).to_contain_text("Savepoint")
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
    page: Page, dashboard: Site
) -> None:
    page.goto(dashboard.address + "/pipelines/views/")
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "fresh")
    page.locator("#region-points a.button", has_text="Restore").first.click()
    verdict = page.locator("dialog #verdict")
    expect(verdict).to_contain_text("It cannot be restored.")
    expect(verdict.locator("[data-outcome=refused]").first).to_contain_text("it was truncated.")

    page.fill("dialog #id_reason", "game day")
    page.fill("dialog #id_confirmation", "views")
    page.click("dialog button[type=submit]")

    refusal = page.locator("dialog .refusal")
    expect(refusal).to_contain_text("into 'views': ")
    expect(refusal).to_contain_text("it was truncated.")
    page.select_option("dialog #id_path", index=1)
    expect(verdict).to_contain_text("It can be restored.")
    expect(verdict).to_contain_text("Every byte of them was read")


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


def test_a_refresh_takes_nothing_away_between_press_and_release(page: Page) -> None:
    page.locator("#region-history tbody tr:nth-child(4) a").hover()
    page.mouse.down()
    pressed = page.locator("#region-history a:active").element_handle()

    wait_for_next_checkpoint(page)

    assert pressed.evaluate("(link) => link.isConnected")
    page.mouse.up()
    page.wait_for_function("(link) => !link.isConnected", arg=pressed, timeout=PATIENCE_MS)


def test_a_refresh_takes_neither_the_focus_nor_the_place_in_a_table(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.evaluate(f"{HISTORY}.focus(); {HISTORY}.scrollTo({{ left: 40, behavior: 'instant' }})")

    wait_for_next_checkpoint(page)

    expect(page.locator("#region-history .scroll")).to_be_focused()
    assert page.evaluate(f"{HISTORY}.scrollLeft") == 40
    page.evaluate("document.querySelector('#details-alignment summary').focus()")
    wait_for_next_checkpoint(page)
    expect(page.locator("#details-alignment summary")).to_be_focused()


def test_a_chosen_checkpoint_stays_while_newer_ones_come(page: Page) -> None:
    page.locator("#region-history tbody tr:nth-child(4) a").click()
    expect(page.locator("#follow-newest")).to_be_visible()
    heading = page.locator("#alignment-title")
    chosen = heading.inner_text()

    wait_for_next_checkpoint(page)

    expect(heading).to_have_text(chosen)
    page.click("#follow-newest")
    expect(heading).not_to_have_text(chosen)


def test_with_the_stream_cut_the_page_asks_by_itself(dashboard: Site, browser: Browser) -> None:
    page = browser.new_page()
    page.add_init_script("delete window.SharedWorker")  # whose requests cannot be cut here
    page.route("**/changes/", lambda route: route.abort())
    sign_in(page, dashboard)

    wait_for_next_checkpoint(page)
    wait_for_next_checkpoint(page)
    page.close()


def test_a_page_that_hears_nothing_asks_within_five_seconds(
    dashboard: Site, browser: Browser
) -> None:
    page = browser.new_page()
    page.clock.install()
    page.add_init_script("delete window.SharedWorker")
    page.route("**/changes/", lambda route: route.abort())
    sign_in(page, dashboard)
    stop_the_clock(page)

    with page.expect_request(asks, timeout=PATIENCE_MS):
        page.clock.run_for(FIVE_SECONDS_MS)
    page.close()


@pytest.mark.parametrize(
    ("answer", "tone"),
    [(lambda route: route.abort(), "cut"), (lambda _: None, re.compile("aging|old|cut"))],
    ids=["nobody there", "nobody answers"],
)
def test_what_is_five_seconds_old_is_called_so(
    dashboard: Site, browser: Browser, answer: Callable[[Route], None], tone: str | re.Pattern[str]
) -> None:
    page = browser.new_page()
    page.clock.install()
    sign_in(page, dashboard)
    page.route(lambda url: "/regions/" in url, answer)
    stop_the_clock(page)

    page.clock.run_for(FIVE_SECONDS_MS)

    expect(page.locator("#freshness")).to_have_attribute("data-tone", tone)
    page.close()


def test_eight_tabs_are_live_at_once(dashboard: Site, browser: Browser) -> None:
    """A browser opens six connections to a host: eight streams would leave none to ask with."""
    context = browser.new_context(base_url=dashboard.address)
    tabs = [context.new_page() for _ in range(8)]
    sign_in(tabs[0], dashboard)
    for tab in tabs[1:]:
        tab.goto("/")

    for tab in tabs:
        with tab.expect_response(lambda answer: "/regions/" in answer.url, timeout=PATIENCE_MS):
            pass  # it has asked, and was answered
    context.close()


def test_without_a_connection_the_page_says_how_old_its_data_is(
    page: Page, dashboard: Site
) -> None:
    page.evaluate("window.loadedOnce = true")
    dashboard.stop_web()

    banner = page.locator("#offline")
    expect(banner).to_be_visible()
    expect(banner).to_contain_text("No connection: this page shows the state of")
    expect(banner).to_contain_text("UTC")
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "cut")
    expect(page.locator("#freshness")).to_contain_text("old")

    dashboard.start_web()
    expect(banner).to_be_hidden()
    wait_for_next_checkpoint(page)
    assert page.evaluate("window.loadedOnce") is True


def test_whoever_has_only_keys_acts_and_reads_what_a_chart_shows(page: Page) -> None:
    wait_until_live(page)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")

    go_to(page, "#act-savepoint")
    page.keyboard.press("Enter")
    expect(page.locator("dialog #id_reason")).to_be_focused()
    wait_for_next_checkpoint(page)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    expect(page.locator("#act-savepoint")).to_be_focused()

    page.keyboard.press("Enter")
    expect(page.locator("dialog #id_reason")).to_be_focused()
    page.keyboard.type("with keys only")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_be_hidden()
    expect(page.locator("#region-requests tr", has_text="with keys only").first).to_be_visible()

    go_to(page, "#details-alignment > summary")
    page.keyboard.press("Enter")
    expect(page.locator("#details-alignment table").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("#details-alignment .scroll").first).to_be_focused()


def test_who_falls_silent_is_named_on_the_open_page(page: Page, dashboard: Site) -> None:
    notices = page.locator("main .notices")
    page.evaluate("window.loadedOnce = true")

    dashboard.silence("driver", "worker")
    expect(notices.filter(has_text="has reported nothing for")).to_contain_text("Stale.")
    expect(notices.filter(has_text="Requests wait.")).to_contain_text("the Redis between them")
    expect(page.locator("#freshness")).to_have_attribute("data-tone", "old")

    dashboard.silence("projector")
    expect(notices.filter(has_text="may be out of date.")).to_contain_text("The projector, which")
    expect(page.locator("h1")).to_contain_text("Unknown")

    dashboard.silence()
    wait_until_live(page)
    expect(notices.filter(has_text="may be out of date.")).to_have_count(0)
    assert page.evaluate("window.loadedOnce") is True


@pytest.fixture
def page(dashboard: Site, browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    sign_in(page, dashboard)
    yield page
    page.close()


def open_dialog(page: Page, action: str) -> None:
    """Press the button once the page's script has run: before, it is a link to another page."""
    wait_until_live(page)
    page.click(f"#act-{action}")


def go_to(page: Page, wanted: str) -> None:
    """From one thing that can be used to the next, as the key Tab does."""
    is_there = "(wanted) => document.activeElement.matches(wanted)"
    for _ in range(STEPS_MAX):
        page.keyboard.press("Tab")
        if page.evaluate(is_there, wanted):
            return
    raise AssertionError(f"{wanted} is not reached with {STEPS_MAX} steps")


def asks(request: Request) -> bool:
    return "/regions/" in request.url


def stop_the_clock(page: Page) -> None:
    """For the page; it goes on when the test says so."""
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)


def wait_for_next_checkpoint(page: Page) -> None:
    card = page.locator("#region-numbers .note").first
    before = card.inner_text().split(",")[0]
    expect(card).not_to_contain_text(before + ",")
