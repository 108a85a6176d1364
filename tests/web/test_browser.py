"""The dashboard in a browser: live without reloading, honest when cut off, never in the way."""

import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Request,
    Response,
    Route,
    StorageState,
    ViewportSize,
    expect,
)
from tenacity import retry, retry_if_exception_message, stop_after_attempt

from tests.web.browser_site import (
    CHROMIUM,
    PATIENCE_MS,
    PIPELINE,
    Site,
    draw_all,
    open_pipeline,
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
"""Finds and uses the element at once: a refresh may come between the two steps of a locator."""

TIMES = """() => [...document.querySelectorAll(".js-plotly-plot")]
  .filter((plot) => plot.layout.xaxis.type === "date")
  .map((plot) => plot.layout.xaxis.range.map((at) => Math.round(timeAxes.instant(at))))"""
CHARTS_WITH_TIME = 3
ALL_IN_SIGHT = ViewportSize(width=1440, height=6_000)
"""A chart that is far out of sight is drawn, or drawn again, only when it comes near."""

TWO_FRAMES = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(done)))"""
PRESS_BOTH = """(keys) => keys.forEach((key) =>
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })))"""
"""Presses both keys at once: the second key counts only within a second and a half."""

HEIGHT = "(each) => each.getBoundingClientRect().height"
BUSY = "() => { for (const until = Date.now() + 700; Date.now() < until;); }"

STEPS_MAX = 200
FIVE_SECONDS_MS = 5_000
ASKS_WITHIN_MS = 3_250  # the page's own interval

CUTS_PATIENCE_SHORT = """
  window.patience = [];
  const { get, set } = Object.getOwnPropertyDescriptor(XMLHttpRequest.prototype, "timeout");
  Object.defineProperty(XMLHttpRequest.prototype, "timeout", {
    get,
    set(ms) { window.patience.push(ms); set.call(this, window.isHurried ? ms / 100 : ms); },
  });
"""

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
    page.locator("#chart-alignment").scroll_into_view_if_needed()
    expect(page.locator("#chart-alignment .plot svg.main-svg").first).to_be_visible()
    expect(page.locator("#sentence-alignment")).to_contain_text("waited longest for")
    page.close()


def test_a_savepoint_is_requested_found_again_and_taken(held: Page, dashboard: Site) -> None:
    open_dialog(held, "savepoint")
    expect(held.locator("dialog .consequence")).to_contain_text("A savepoint is written")
    held.fill("dialog #id_label", "the old version")
    send_dialog(held, "before the upgrade")

    row = held.locator("#region-requests tr", has_text="before the upgrade")
    expect(row).to_contain_text("waiting for delivery")
    expect(row).to_contain_text("admin")
    leave_and_find_again(held, "#region-progress", waits_as("Savepoint"))
    dashboard.silence()
    expect(row).to_contain_text("succeeded")
    expect(held.locator("#region-points")).to_contain_text("“the old version”")
    expect(held.locator("#region-progress .notice")).to_have_count(0)


def test_one_click_verifies_every_byte_of_a_savepoint(held: Page, dashboard: Site) -> None:
    held.goto(dashboard.address + "/savepoints/clicks-1-1/")
    held.click("#verify")

    leave_and_find_again(
        held, "#verification", "Its files are being verified: it waits for the worker"
    )
    dashboard.silence()
    found = held.locator("#verification")
    expect(found).to_have_text(re.compile(r"✓ As written: [2-9]\d* files .* every digest matches"))


def test_a_comparison_of_two_savepoints_is_requested_found_again_and_shown(
    held: Page, dashboard: Site
) -> None:
    held.goto(dashboard.address + "/savepoints/clicks-1-2/")
    held.click("#compare")
    held.select_option("#id_from", "clicks-1-1")
    held.click("main form [type=submit]")

    leave_and_find_again(held, "#outcome", "They are being compared: it waits for the worker")
    dashboard.silence()
    expect(held.locator("#outcome")).to_contain_text("asked by admin. Savepoints never change")
    expect(held.locator("#outcome")).to_contain_text("10 of 20 rows that are new")


def test_one_click_audits_the_output(held: Page, dashboard: Site) -> None:
    held.goto(dashboard.address + "/pipelines/clicks/guarantee/")
    held.click("#start-audit")
    expect(held.locator("main .notice[role=status]")).to_contain_text(
        "you may leave, and find it here"
    )

    waits = "An audit is under way: it waits for the worker. Asked by admin"
    leave_and_find_again(held, "#region-audit", waits)
    dashboard.silence()
    found = held.locator("#region-audit")
    expect(found).to_contain_text("✓ The output matches the ledger")
    expect(found.locator("tr", has_text="events")).to_contain_text("checkpoint 3")
    expect(held.locator("#region-audits tbody tr").first).to_contain_text("as recorded")


def test_a_run_is_restored_cancelled_and_restored_from_a_savepoint_of_another_pipeline(
    held: Page, dashboard: Site
) -> None:
    own, other = "/savepoints/clicks-again-1-1/", "/savepoints/clicks-1-2/"
    of_it = dashboard.address + "/pipelines/clicks-again/"
    held.goto(dashboard.address + own)
    wait_until_live(held)
    held.click("#act-restore")
    expect(held.locator("dialog #verdict-head")).to_have_text("✓ It can be restored.")
    expect(held.locator("dialog #reading")).to_contain_text("All of its files will be read")
    send_dialog(held, "the old version was right", "clicks-again")

    leave_and_find_again(held, "#region-progress", waits_as("Restore"))
    dashboard.silence()
    runs = held.locator("#region-savepoint-runs")
    expect(runs.locator("tbody tr")).to_contain_text("run 2")
    held.goto(of_it)
    expect(held.locator("h1")).to_contain_text("Running")
    expect(held.locator("#region-heading")).to_contain_text("restored from")
    asked = held.locator("#region-requests tr", has_text="the old version was right")
    expect(asked).to_contain_text("The pipeline is running.")

    open_dialog(held, "cancel")
    send_dialog(held, "it was not", "clicks-again")
    expect(held.locator("h1")).to_contain_text("Canceled")

    held.goto(dashboard.address + other)
    held.select_option("#id_into", "clicks-again")
    held.click("#restore-into")
    expect(held.locator("#verdict-head")).to_have_text("✓ It can be restored.")
    held.fill("#id_reason", "on its own")
    held.fill("#id_confirmation", "clicks-again")
    held.click("main form [type=submit]")
    expect(held.locator("main .notice[role=status]")).to_contain_text(
        "Asked for: restore from a point"
    )
    expect(held.locator("h1")).to_contain_text("Running")
    held.goto(dashboard.address + other)
    expect(runs.locator("tbody tr")).to_contain_text("clicks-again")


def test_a_savepoint_is_deleted_after_its_name_was_typed(held: Page, dashboard: Site) -> None:
    directory = dashboard.home / "jobs/clicks/savepoints/savepoint-clicks-1-3"
    held.goto(dashboard.address + "/savepoints/clicks-1-3/")
    wait_until_live(held)
    held.click("#act-dispose")
    expect(held.locator("dialog .consequence")).to_contain_text("are deleted permanently")
    send_dialog(held, "nobody needs it", directory.name)

    leave_and_find_again(held, "#region-progress", waits_as("Dispose of a savepoint"))
    assert directory.exists()
    dashboard.silence()
    expect(held.locator("#region-savepoint-heading [data-status=DISCARDED]")).to_be_visible()
    expect(held.locator("#act-restore, #act-dispose")).to_have_count(0)
    assert not directory.exists()


def test_a_refusal_keeps_the_dialog_open_with_the_typed_text(page: Page) -> None:
    open_dialog(page, "kill")
    page.fill("dialog #id_reason", "game day")
    page.fill("dialog #id_confirmation", "flihgt_delays")
    page.click("dialog button[type=submit]")

    expect(page.locator("dialog .errorlist")).to_have_text(
        "The name of this pipeline is flight_delays."
    )
    expect(page.locator("dialog #id_reason")).to_have_value("game day")


def test_dialog_and_server_refuse_a_truncated_savepoint_but_not_a_whole_one(
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
    expect(verdict).to_contain_text("All of its files were read")


def test_a_refresh_does_not_disturb_typing_or_reading(page: Page) -> None:
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


def test_a_refresh_keeps_a_link_between_press_and_release(page: Page) -> None:
    page.locator("#region-history tbody tr:nth-child(4) a").hover()
    page.mouse.down()
    pressed = page.locator("#region-history a:active").element_handle()

    wait_for_next_checkpoint(page)

    assert pressed.evaluate("(link) => link.isConnected")
    page.mouse.up()
    expect(page.locator("#region-history tr.is-chosen")).to_have_count(1)
    assert pressed.evaluate("(link) => link.isConnected")  # unchanged elements are not replaced


@pytest.mark.parametrize("width", [1280, 600], ids=["in-wide-rows", "in-rows-of-two-lines"])
def test_a_refresh_replaces_nothing_under_the_cursor(page: Page, width: int) -> None:
    """An unchanged link is still there. A link that would disappear holds its region back."""
    page.set_viewport_size({"width": width, "height": 720})
    links = page.locator("#region-history tbody th a")
    links.nth(3).hover()
    pointed = page.locator("#region-history a:hover").element_handle()
    before, place = pointed.inner_text(), pointed.bounding_box()
    assert place
    wait_for_next_checkpoint(page)
    expect(links.nth(3)).not_to_have_text(before)
    cursor = [place["x"] + place["width"] / 2, place["y"] + place["height"] / 2]
    assert pointed.evaluate("(link, at) => document.elementFromPoint(...at) === link", cursor)
    assert pointed.evaluate("(link) => link.matches(':hover')")
    assert pointed.inner_text() == before

    links.last.hover()
    oldest, newest = links.last.inner_text(), links.first.inner_text()
    wait_for_next_checkpoint(page)
    assert page.locator("#region-history a:hover").inner_text() == oldest
    assert (links.first.inner_text(), links.last.inner_text()) == (newest, oldest)

    page.mouse.move(0, 0)
    expect(links.last).not_to_have_text(oldest)


def test_a_part_that_is_fetched_later_moves_nothing_under_the_cursor(
    page: Page, dashboard: Site
) -> None:
    waiting: list[Route] = []
    page.route(re.compile("/holds/$"), lambda route: waiting.append(route))
    page.goto(dashboard.address + "/savepoints/clicks-1-2/")
    button = page.locator("#restore-into")
    button.hover()
    before = button.bounding_box()
    page.wait_for_function("() => !document.querySelector('#shelf-life.htmx-request')")
    height = page.evaluate("document.body.scrollHeight")

    [late] = waiting
    late.continue_()

    expect(page.locator("#holds table")).to_be_visible()
    assert page.evaluate("document.body.scrollHeight") > height + 100
    assert button.bounding_box() == before


def test_a_button_under_the_cursor_stays_until_the_cursor_leaves(page: Page) -> None:
    def with_another_button(route: Route) -> None:
        answer = route.fetch()
        body = answer.text().replace('id="act-kill"', 'id="act-another"')
        route.fulfill(response=answer, body=body)

    page.hover("#act-kill")
    page.route(asks_at, with_another_button)
    for _ in range(3):  # the first may be older, and the last is not answered yet
        with page.expect_response(asks, timeout=PATIENCE_MS):
            pass

    assert page.locator("#act-kill").is_visible()
    page.mouse.move(0, 0)
    expect(page.locator("#act-another")).to_be_visible()
    expect(page.locator("#act-kill")).to_have_count(0)


def test_a_refresh_leaves_a_form_on_the_page_as_it_is(page: Page, dashboard: Site) -> None:
    page.goto(dashboard.address)
    wait_until_live(page)
    page.select_option("#id_group", "flow")
    page.locator("#id_q").press_sequentially("fli")
    with page.expect_response(asks, timeout=PATIENCE_MS):
        pass
    with page.expect_response(asks, timeout=PATIENCE_MS):
        pass  # the page has processed the first one by now
    page.keyboard.type("ght")

    expect(page.locator("#id_q")).to_be_focused()
    expect(page.locator("#id_q")).to_have_value("flight")
    expect(page.locator("#id_group")).to_have_value("flow")


def test_a_refresh_keeps_the_focus_and_the_scroll_position_of_a_table(page: Page) -> None:
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


def test_the_page_polls_when_the_stream_is_cut(dashboard: Site, browser: Browser) -> None:
    page = browser.new_page()
    page.add_init_script("delete window.SharedWorker")  # its requests cannot be cut here
    page.route("**/changes/", lambda route: route.abort())
    sign_in(page, dashboard)

    wait_for_next_checkpoint(page)
    wait_for_next_checkpoint(page)
    page.close()


def test_a_page_that_hears_nothing_polls_within_five_seconds(
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
def test_the_page_marks_data_that_is_five_seconds_old(
    dashboard: Site, browser: Browser, answer: Callable[[Route], None], tone: str | re.Pattern[str]
) -> None:
    page = browser.new_page()
    page.clock.install()
    sign_in(page, dashboard)
    page.route(asks_at, answer)
    with page.expect_request(asks, timeout=PATIENCE_MS):
        pass  # it sends one request at a time: no earlier one can still be answered
    stop_the_clock(page)

    page.clock.run_for(FIVE_SECONDS_MS)

    expect(page.locator("#freshness")).to_have_attribute("data-tone", tone)
    page.close()


def test_a_slow_server_is_not_reported_as_unreachable_at_once(
    dashboard: Site, browser: Browser, signed_in: StorageState
) -> None:
    page = browser.new_page(storage_state=signed_in)
    page.clock.install()
    page.add_init_script(CUTS_PATIENCE_SHORT)
    open_pipeline(page, dashboard)
    stop_the_clock(page)
    answers_now(page)
    page.route(asks_at, lambda _: None)
    page.evaluate("window.isHurried = true")
    banner = page.locator("#offline")

    for _ in range(2):
        with page.expect_event("requestfailed", asks, timeout=PATIENCE_MS):
            page.clock.run_for(ASKS_WITHIN_MS)
    expect(banner).to_be_hidden()

    page.clock.run_for(FIVE_SECONDS_MS)
    expect(banner).to_contain_text("The web server does not answer")
    page.close()


@pytest.mark.parametrize(("age_ms", "tone"), [(4_600, "aging"), (15_100, "old")])
def test_the_page_marks_data_by_the_age_that_the_server_reports(
    dashboard: Site, browser: Browser, signed_in: StorageState, age_ms: int, tone: str
) -> None:
    page = browser.new_page(storage_state=signed_in)
    page.clock.install()
    open_pipeline(page, dashboard)
    stop_the_clock(page)

    is_told(page, "fresh-ms", age_ms)

    assert page.locator("#freshness").get_attribute("data-tone") == tone
    page.close()


@pytest.mark.parametrize("place", ["lab", "settings"])
def test_the_page_polls_as_soon_as_a_process_would_be_silent(
    dashboard: Site, browser: Browser, signed_in: StorageState, place: str
) -> None:
    """The server knows after eight seconds; a page that asks every three, after eleven."""
    page = browser.new_page(storage_state=signed_in)
    page.clock.install()
    page.add_init_script("delete window.SharedWorker")
    page.route("**/changes/", lambda route: route.abort())
    page.goto(f"{dashboard.address}/{place}/")
    wait_until_live(page)
    stop_the_clock(page)
    is_told(page, "silent-in-ms", 1_500)

    with page.expect_request(asks, timeout=PATIENCE_MS):
        page.clock.run_for(2_000)
    page.close()


def test_the_page_retries_a_silent_server_within_five_seconds(
    dashboard: Site, browser: Browser, signed_in: StorageState
) -> None:
    page = browser.new_page(storage_state=signed_in)
    page.clock.install()
    page.add_init_script(CUTS_PATIENCE_SHORT)
    open_pipeline(page, dashboard)
    page.route(asks_at, lambda _: None)
    stop_the_clock(page)
    page.evaluate("window.isHurried = true")

    with page.expect_event("requestfailed", asks, timeout=PATIENCE_MS):
        page.clock.run_for(ASKS_WITHIN_MS)

    assert 0 < page.evaluate("Math.max(...window.patience)") < FIVE_SECONDS_MS
    with page.expect_request(asks, timeout=PATIENCE_MS):
        page.clock.run_for(ASKS_WITHIN_MS)
    page.close()


def test_eight_tabs_are_live_at_once(dashboard: Site, browser: Browser) -> None:
    """A browser opens six connections to a host, so eight streams would leave none for requests."""
    context = browser.new_context(base_url=dashboard.address)
    tabs = [context.new_page() for _ in range(8)]
    sign_in(tabs[0], dashboard)
    for tab in tabs[1:]:
        tab.goto("/")

    for tab in tabs:
        with tab.expect_response(asks, timeout=PATIENCE_MS):
            pass  # it has asked and got an answer
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


def test_keyboard_users_can_act_and_read_the_values_of_a_chart(page: Page) -> None:
    wait_until_live(page)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")

    go_to(page, "#act-savepoint")
    page.keyboard.press("Enter")
    expect(page.locator("dialog #id_reason")).to_be_focused()
    wait_for_next_checkpoint(page)
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).to_be_hidden()
    expect(page.locator("#act-savepoint")).to_be_focused()

    page.keyboard.press("Enter")
    expect(page.locator("dialog #id_reason")).to_be_focused()
    page.keyboard.type("with keys only")
    page.keyboard.press("Enter")
    expect(page.locator("#dialog")).to_be_hidden()
    expect(page.locator("#region-requests tr", has_text="with keys only").first).to_be_visible()

    go_to(page, "#details-alignment > summary")
    page.keyboard.press("Enter")
    expect(page.locator("#details-alignment table").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("#details-alignment .scroll").first).to_be_focused()


def test_metrics_of_functions_are_drawn_and_their_tables_update(page: Page) -> None:
    page.goto(page.url.rstrip("/") + "/metrics/")
    wait_until_live(page)
    table = page.locator("#region-metrics-user")
    counted = table.locator("tr", has_text="delayed_flights").first.locator("td").nth(2)

    expect(page.locator("#sentence-user-metrics")).to_contain_text("How 2 metrics changed")
    page.locator("#chart-user-metrics").scroll_into_view_if_needed()
    expect(page.locator("#chart-user-metrics .plot svg.main-svg").first).to_be_visible()
    expect(page.locator("#chart-user-metrics")).to_contain_text("hourly-delay: delay_minutes")
    before = counted.inner_text()
    expect(counted).not_to_have_text(before, timeout=PATIENCE_MS)
    table.locator("summary", has_text="Each metric in each subtask").click()

    expect(table).to_contain_text("hourly-delay[1]")
    expect(table).to_contain_text("95 % below")


def test_the_palette_can_be_opened_searched_and_followed_by_keyboard_only(page: Page) -> None:
    text, options = page.locator("#palette-text"), page.locator("#palette [role=option]")
    page.keyboard.press("Control+k")
    expect(text).to_be_focused()
    expect(options.first).to_contain_text("All pipelines")

    page.keyboard.insert_text("flight_delays")
    expect(options.first).to_contain_text("flight_delays")
    for key, place in (("Down", 1), ("Down", 2), ("Up", 1), ("Up", 0), ("Up", -1), ("Down", 0)):
        page.keyboard.press(f"Arrow{key}")
        chosen = options.nth(place)
        expect(chosen).to_have_attribute("aria-selected", "true")
        expect(text).to_have_attribute("aria-activedescendant", chosen.get_attribute("id") or "")
        expect(page.locator("#palette [aria-selected=true]")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    expect(page).to_have_url(re.compile(f"{PIPELINE}$"))

    page.keyboard.press("Control+k")
    expect(text).to_have_value("")
    page.keyboard.insert_text("flight_delays metrics")
    expect(options).to_have_text(["flight_delays: metrics page"])
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"{PIPELINE}metrics/$"))


def test_shortcut_keys_work_are_listed_and_can_be_switched_off(page: Page) -> None:
    listed, search = page.locator("#shortcuts"), page.locator("#id_q")
    page.keyboard.press("?")
    expect(listed).to_contain_text("Go to any pipeline, checkpoint, page or action")
    page.keyboard.press("Escape")
    expect(listed).to_be_hidden()
    for key, heading in (("i", "Incidents"), ("p", "Pipelines")):
        page.evaluate(PRESS_BOTH, ["g", key])
        expect(page.locator("h1")).to_have_text(heading)
        wait_until_live(page)

    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("?gi")
    expect(search).to_have_value("?gi")
    expect(listed).to_be_hidden()

    search.blur()
    page.keyboard.press("?")
    listed.locator("#single-keys").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    wait_until_live(page)
    page.keyboard.press("?")
    expect(listed).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(page.locator("#palette-text")).to_be_focused()


def test_all_charts_share_one_time_range_across_refreshes_and_in_the_address(page: Page) -> None:
    page.set_viewport_size(ALL_IN_SIGHT)
    draw_all(page)
    page.select_option("#time-range", "300")
    page.wait_for_function(f"() => ({TIMES})().every(([from, to]) => to - from === 300_000)")
    ended = page.evaluate(TIMES)[0][1]
    assert len(page.evaluate(TIMES)) == CHARTS_WITH_TIME
    assert times_in_address(page) == {"last": "300"}
    page.wait_for_function(f"(ended) => ({TIMES})().every(([, to]) => to > ended)", arg=ended)

    zoom_in(page, "#chart-throughput")
    expect(page.locator("#time-range")).to_have_value("chosen")
    chosen = times_in_address(page)
    shown = [[int(chosen["from"]), int(chosen["to"])]] * CHARTS_WITH_TIME
    assert 0 < shown[0][1] - shown[0][0] < 200_000
    assert page.evaluate(TIMES) == shown
    wait_for_next_checkpoint(page)
    assert page.evaluate(TIMES) == shown

    page.reload()
    page.wait_for_function(f"(shown) => JSON.stringify(({TIMES})()) === shown", arg=as_json(shown))
    expect(page.locator("#time-range")).to_have_value("chosen")
    zoom_out(page, "#chart-throughput")
    expect(page.locator("#time-range")).to_have_value("")
    assert times_in_address(page) == {}
    assert page.evaluate(TIMES) != shown


def test_a_chart_without_a_time_axis_stays_zoomed_until_a_double_click(
    page: Page,
) -> None:
    page.set_viewport_size(ALL_IN_SIGHT)
    draw_all(page)
    is_whole = "() => document.querySelector('#chart-alignment .plot').layout.xaxis.autorange"
    shown = is_whole.replace("autorange", "range")
    assert page.evaluate(is_whole)

    while page.evaluate(is_whole):  # a refresh while the box is drawn cancels the box
        zoom_in(page, "#chart-alignment")
    chosen = page.evaluate(shown)
    wait_for_next_checkpoint(page)
    assert not page.evaluate(is_whole)
    assert page.evaluate(shown) == chosen

    zoom_out(page, "#chart-alignment")
    page.wait_for_function(is_whole)
    assert times_in_address(page) == {}


def test_a_copied_link_shows_a_colleague_the_same_time(page: Page, dashboard: Site) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=dashboard.address)
    page.set_viewport_size(ALL_IN_SIGHT)
    draw_all(page)
    page.select_option("#time-range", "300")

    page.click("#copy-moment")

    expect(page.locator("#copied-moment")).to_have_text("Copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    shown = page.evaluate(TIMES)
    assert shown[0][1] - shown[0][0] == 300_000
    wait_for_next_checkpoint(page)
    page.goto(link)
    page.wait_for_function(f"(shown) => JSON.stringify(({TIMES})()) === shown", arg=as_json(shown))
    expect(page.locator("#time-range")).to_have_value("chosen")


def test_a_chart_is_first_drawn_when_it_comes_near_and_then_moves_nothing(page: Page) -> None:
    page.set_viewport_size(ViewportSize(width=1440, height=300))
    page.reload()
    wait_until_live(page)
    charts = page.locator(".chart")
    last = charts.last.locator(".plot")
    page.evaluate(TWO_FRAMES)  # by then the page knows which charts are near
    height = last.evaluate(HEIGHT)  # not the page's, whose tables grow meanwhile
    assert charts.count() > 1
    assert last.locator("svg").count() == 0

    last.scroll_into_view_if_needed()

    expect(last.locator("svg.main-svg").first).to_be_visible()
    assert last.evaluate(HEIGHT) == height


def test_a_chart_out_of_sight_is_redrawn_only_when_it_comes_near(page: Page) -> None:
    chart = page.locator("#chart-throughput")
    plot = chart.locator(".plot").element_handle()
    draw_all(page)
    page.locator("main").evaluate("(main) => { main.style.paddingTop = '3000px'; }")
    page.evaluate(TWO_FRAMES)  # by then the page knows which charts are near
    drawn = plot.evaluate("(plot) => { plot.before = plot.data; return plot.data.length; }")
    assert drawn
    wait_for_next_checkpoint(page)
    wait_for_next_checkpoint(page)
    assert plot.evaluate("(plot) => plot.data === plot.before")

    chart.scroll_into_view_if_needed()
    page.mouse.move(0, 0)

    page.wait_for_function("(plot) => plot.data !== plot.before", arg=plot, timeout=PATIENCE_MS)


def test_subtasks_can_be_sorted_by_keyboard_only(page: Page) -> None:
    page.goto(page.url + "checkpoints/1/")
    wait_until_live(page)
    details, heading = page.locator("#details-operator-3"), page.locator("#order-3-alignment")
    details.locator("summary").click()
    column = details.locator("th", has=heading)
    first, second = (f"weather-at-departure[{index}]" for index in (0, 1))

    heading.focus()
    for direction in ("descending", "ascending"):
        page.keyboard.press("Enter")
        expect(column).to_have_attribute("aria-sort", direction)
        expect(heading).to_be_focused()
    page.keyboard.press("Enter")

    expect(column).not_to_have_attribute("aria-sort", re.compile("."))
    expect(details.locator("tbody th").first).to_be_visible()
    expect(details.locator("tbody th")).to_contain_text([first, second, "Minimum"])


def test_an_open_page_names_a_process_that_falls_silent(page: Page, dashboard: Site) -> None:
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


@pytest.fixture(scope="module")
def signed_in(dashboard: Site, browser: Browser) -> StorageState:
    """Signs in once, because checking a password is slow on purpose."""
    page = browser.new_page()
    sign_in(page, dashboard)
    state = page.context.storage_state()
    page.close()
    return state


@pytest.fixture(scope="module")
def shared(browser: Browser, signed_in: StorageState) -> Iterator[BrowserContext]:
    """The scripts of a page cost a second of processor time in a browser that has not kept them."""
    with browser.new_context(storage_state=signed_in) as context:
        yield context


@pytest.fixture
def page(dashboard: Site, shared: BrowserContext) -> Iterator[Page]:
    page = shared.new_page()
    open_pipeline(page, dashboard)
    yield page
    page.unroute_all(behavior="ignoreErrors")  # one may be under way, and would fail the next test
    page.evaluate("localStorage.clear()")
    page.close()


@pytest.fixture
def held(page: Page, dashboard: Site) -> Iterator[Page]:
    """Yields the page while the worker does nothing. The worker continues when the test says so."""
    dashboard.silence("worker")
    expect(page.locator("#region-processes")).to_contain_text("Requests wait.")
    yield page
    dashboard.silence()


def open_dialog(page: Page, action: str) -> None:
    """Presses the button once the page's script has run; before that, it links to another page."""
    wait_until_live(page)
    page.click(f"#act-{action}")


def send_dialog(page: Page, reason: str, name: str | None = None) -> None:
    page.fill("dialog #id_reason", reason)
    if name is not None:
        page.fill("dialog #id_confirmation", name)
    page.click("dialog button[type=submit]")
    expect(page.locator("#dialog")).to_be_hidden()


def waits_as(label: str) -> re.Pattern[str]:
    """Matches the message of the first seconds and the later one."""
    return re.compile(f"{label}: (waiting for delivery|stored; it is delivered when a worker runs)")


def leave_and_find_again(page: Page, part: str, words: str | re.Pattern[str]) -> None:
    expect(page.locator(part)).to_contain_text(words)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(part)).to_contain_text(words)


def go_to(page: Page, wanted: str) -> None:
    """Goes from one usable element to the next, as the Tab key does."""
    is_there = "(wanted) => document.activeElement.matches(wanted)"
    for _ in range(STEPS_MAX):
        page.keyboard.press("Tab")
        if page.evaluate(is_there, wanted):
            return
    raise AssertionError(f"{wanted} is not reached with {STEPS_MAX} steps")


def zoom_in(page: Page, chart: str) -> None:
    """Zooms into the middle by drawing a box; then the pointer leaves."""
    drawing = page.locator(f"{chart} .nsewdrag").first
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], middle, steps=4)
    page.mouse.up()
    page.mouse.move(0, 0)


def zoom_out(page: Page, chart: str) -> None:
    """Zooms out by a double click whose second half the busy page sees late."""
    page.locator(f"{chart} .nsewdrag").first.hover()
    for count in (1, 2):
        page.mouse.down(click_count=count)
        page.mouse.up(click_count=count)
        page.evaluate(BUSY)
    page.mouse.move(0, 0)


def times_in_address(page: Page) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(page.url).query))


def as_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def asks(sent: Request | Response) -> bool:
    return asks_at(sent.url)


def asks_at(address: str) -> bool:
    return "/regions/" in address


def is_told(page: Page, figure: str, milliseconds: int) -> None:
    """Makes the server report this figure from now on; the rest of its pulse stays the same."""
    pulse = page.locator("#pulse").evaluate("(pulse) => pulse.outerHTML")
    changed = re.sub(rf'data-{figure}="\d*"', f'data-{figure}="{milliseconds}"', pulse)
    body = changed.replace("<div", '<div hx-swap-oob="true"', 1)
    page.route(asks_at, lambda route: route.fulfill(body=body, content_type="text/html"))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it asks
    expect(page.locator("#pulse")).to_have_attribute(f"data-{figure}", str(milliseconds))
    expect(page.locator(".htmx-request")).to_have_count(0)


def answers_now(page: Page) -> None:
    """Gets an answer while the page's clock is stopped; the page counts from here on."""
    with page.expect_response(asks, timeout=PATIENCE_MS):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it asks
    expect(page.locator(".htmx-request")).to_have_count(0)


@retry(retry=retry_if_exception_message(match=r".*to the past"), stop=stop_after_attempt(10))
def stop_the_clock(page: Page) -> None:
    """Stops the clock of the page until the test moves it.

    The test retries, because on a busy machine a second may pass before the page gets the call.
    """
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)


def wait_for_next_checkpoint(page: Page) -> None:
    card = page.locator("#region-numbers .note").first
    before = card.inner_text().split(",")[0]
    expect(card).not_to_contain_text(before + ",")
