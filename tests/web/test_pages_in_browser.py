"""Every page as a person meets it: at a desk and on a phone, in light and in dark.

The test finds the pages as a person does, by links from the first one on. The table of addresses
shows whether it missed one.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import get_resolver
from playwright.sync_api import (
    APIRequestContext,
    Browser,
    BrowserContext,
    Page,
    ViewportSize,
    expect,
)

from ftdash.ui.actions.page import ACTIONS
from ftdash.ui.settings import page as settings_page
from tests.web.addresses import (
    NO_PAGES,
    PAGES,
    STATES,
    all_patterns,
    reached_by_links,
    reached_states,
)
from tests.web.browser_site import (
    CHROMIUM,
    PATIENCE_MS,
    Site,
    complaints_of,
    draw_all,
    sign_in,
    wait_until_live,
)
from tests.web.cut_off import cut_off
from tests.web.keyboard_walk import WALKING, unreachable, walk

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH and no FTDASH_CHROMIUM"),
]

FILLED = {
    "alerts": ("2 alerts fire.", "Acknowledge", "the network team is at it"),
    "being-verified": ("Its files are being verified", "13 of 40 files"),
    "compared": ("10 of 20 rows that are new",),
    "game-day": ("Phases of the recovery", "was refused 2 ×"),
    "game-days": ("7 rows are gone.", "did not happen"),
    "guarantee": ("The output matches the ledger", "something differs"),
    "measured-lab": ("Every mode kept its guarantee",),
    "recovery": ("Current thread (most recent call first):", "step_24.py"),
    "lab": ("A promise was broken", "exactly-once-unaligned"),
    "state-in-rows": ("app_id", "20 rows"),
}
"""Text on pages that are not checked while they are empty."""

WIDTHS = {
    "desk": ViewportSize(width=1440, height=900),
    "phone": ViewportSize(width=390, height=844),
}
NOTHING_IS_ASKED = "() => !document.querySelector('.htmx-request')"
NOT_NEEDED = re.compile("/(regions|verification|progress|reading)/|plotly")
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
IS_FIRST_IN_MAIN = """() => {
  const [first = document.querySelector(".skip")] = stopsIn(document.querySelector("main"));
  return document.activeElement === first;
}"""
ADDRESSES = "(links) => links.map((each) => each.href)"
WITH_DIALOGS = ("pipeline", "savepoint")
Rules = dict[str, object]
STANDARDS: Rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
BUT_COLOURS: Rules = STANDARDS | {"rules": {"color-contrast": {"enabled": False}}}
COLOURS: Rules = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
WITH_MOMENTS = {  # with the place on the page
    "compare-savepoints": ".facts",
    "savepoint-state": ".facts",
    "savepoint": "#shelf-life",
}
SHOWN_FOR = {
    "reactivate": "deactivate",
    "require-no-factor": "require-factor",
    "reset-factor": "reset-password",
    "switch-on": "switch-off",
}
"""Actions that nothing here allows, each with one whose form is on the same object."""

WITH_SENTENCES = {  # sentences that contain moments, by address or the page's name
    "act": "main option",
    "compare-savepoints": "main option",
    "settings": "#region-log small",
    "event-log": "main td",
    "/settings/revoke-token/?of=ci": ".consequence",
}
BOTH_ZONES = re.compile(r"(\w+ \d+, \d+, [\d:]+) \((\S+) (\S+) UTC\)")
CLOCK_IN_BOTH = re.compile(r"the state of (\d\d):[\d:]+ \((\d\d):[\d:]+ UTC\)")
NONE_IN_UTC = """() => ![...document.querySelectorAll("time[data-moment]")].some(
  (time) => time.textContent.includes("UTC"))"""
IN_TOKYO = """(moment) => new Date(moment).toLocaleString([], {
  timeZone: "Asia/Tokyo", year: "numeric", month: "short", day: "numeric",
  hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false })"""
TYPED = [
    ("Asia/Tokyo", "2026-11-22T08:00:05", "2026-11-21 23:00:05"),
    ("America/New_York", "2026-07-01T22:30", "2026-07-02 02:30:00"),
]
DRAWN = """() => {
  const plots = [...document.querySelectorAll(".plot:not([hidden])")];
  const drawings = plots.map((plot) => plot.querySelector("svg.main-svg"));
  return drawings.every(Boolean) && drawings.map(
    (drawing) => [drawing.clientWidth, drawing.clientHeight]);
}"""
IS_DRAWN_AS = f"(sizes) => JSON.stringify(({DRAWN})()) === JSON.stringify(sizes)"
IS_WHOLE = "(frame) => frame.scrollWidth <= frame.clientWidth"
IS_WHOLE_WITH_LONG_NAMES = """(frame) => {
  frame.querySelectorAll(".number small").forEach((small) => {
    small.textContent = "weather-at-departure";
  });
  return frame.scrollWidth <= frame.clientWidth;
}"""
TOLD_IN = {"event-log": "#region-lines", "recovery": "#region-failures"}
AS_OF_ANOTHER_DAY = """(times) => times.forEach((time) => {
  time.textContent = "Sep 30, 2026, 20:00:00";
})"""
ARE_IN_SIGHT = """(table) => {
  const edge = table.parentElement.getBoundingClientRect().right;
  const told = [...table.querySelectorAll("tbody td:nth-child(2)")];
  return told.length > 0 && told.every((cell) => cell.getBoundingClientRect().right <= edge);
}"""
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
FITS = f"""() => !({SIDEWAYS}) && [...document.querySelectorAll(".plot svg.main-svg")].every(
  (drawing) => drawing.clientWidth <= drawing.closest(".plot").clientWidth)"""
"""Charts are redrawn a moment after the window has become narrower."""


@pytest.fixture(scope="module")
def signed_in(dashboard: Site, browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=dashboard.address)
    page = context.new_page()
    sign_in(page, dashboard)
    page.close()  # an open one would fetch and draw each change while the tests run
    yield context
    context.close()


@pytest.fixture(scope="module")
def reached(signed_in: BrowserContext) -> dict[str, str]:
    found = reached_by_links(signed_in.request)
    return found | reached_states(signed_in.request, found)


@dataclass(frozen=True, slots=True)
class Opened:
    """`said` collects its complaints so far."""

    page: Page
    said: list[str]


@pytest.fixture(scope="module", params=[*PAGES, *STATES])
def opened(
    request: pytest.FixtureRequest, signed_in: BrowserContext, reached: dict[str, str]
) -> Iterator[Opened]:
    """Loads each page once for all tests that look at every page."""
    page = signed_in.new_page()
    page.emulate_media(reduced_motion="reduce")
    page.add_init_script(WALKING)
    said = complaints_of(page)
    page.set_viewport_size(WIDTHS["desk"])
    page.goto(reached[request.param], wait_until="load")
    draw_all(page)
    yield Opened(page, said)
    page.close()


@pytest.mark.parametrize("name", FILLED)
def test_each_page_under_test_has_content_on_it(
    signed_in: BrowserContext, reached: dict[str, str], name: str
) -> None:
    text = html.unescape(signed_in.request.get(reached[name]).text())

    assert [words for words in FILLED[name] if words not in text] == []


def test_links_lead_to_every_page(reached: dict[str, str]) -> None:
    names = {str(each.name) for each in all_patterns(get_resolver().url_patterns)}
    regions = {name for name in names if name.endswith("-regions")}

    assert set(reached) == {*PAGES, *STATES}
    assert names - set(PAGES) - set(NO_PAGES) - regions == set(), "an address of which kind?"


def test_a_page_is_accessible_fits_its_window_and_logs_nothing(opened: Opened) -> None:
    """Checks the page at a desk, in both colour schemes, and then in a window as narrow as a phone.

    Nothing appears in the console, scrolls sideways, is cut off, violates WCAG 2.1 AA by axe's
    rules, or scrolls only by a pointer.
    """
    page = opened.page
    page.emulate_media(color_scheme="dark")
    assert objections(page, COLOURS) == ""
    page.emulate_media(color_scheme="light")
    for width, size in WIDTHS.items():
        page.set_viewport_size(size)
        page.wait_for_function(FITS, timeout=PATIENCE_MS)
        rules = STANDARDS if width == "desk" else BUT_COLOURS  # the colours are those of the desk
        assert objections(page, rules) == "", width
        assert not page.evaluate(SIDEWAYS), width
        assert cut_off(page) == [], width
    assert opened.said == []
    page.evaluate(OPEN_ALL)
    assert unreachable(page) == []


def test_a_page_can_be_used_with_the_keyboard_alone(opened: Opened) -> None:
    """Everything that opens is open, and nothing is replaced during the walk."""
    page = opened.page
    page.set_viewport_size(WIDTHS["desk"])
    page.wait_for_function(FITS, timeout=PATIENCE_MS)
    page.route(NOT_NEEDED, lambda route: route.abort())
    page.wait_for_function(NOTHING_IS_ASKED, timeout=PATIENCE_MS)
    page.evaluate(OPEN_ALL)

    assert walk(page) == []
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate(IS_FIRST_IN_MAIN)


@pytest.mark.parametrize("name", WITH_DIALOGS)
def test_dialogs_work_by_keyboard_and_return_the_focus_to_their_opener(
    signed_in: BrowserContext, reached: dict[str, str], name: str
) -> None:
    page = page_that_stays(signed_in, reached[name])
    openers = page.locator("main a[data-dialog]")
    actions = dict.fromkeys(map(action_of, openers.evaluate_all(ADDRESSES)))
    assert actions

    for action in actions:
        opener = page.locator(f"main a[data-dialog][href*='/{action}/']").first
        opener.press("Enter")
        expect(page.locator("#dialog #id_reason")).to_be_focused()
        page.wait_for_function(NOTHING_IS_ASKED, timeout=PATIENCE_MS)
        assert walk(page, "dialog") == [], action
        page.keyboard.press("Escape")
        expect(page.locator("#dialog")).to_be_hidden()
        expect(opener).to_be_focused()
    page.close()


def test_times_are_shown_in_the_viewers_zone_on_pages_and_in_later_updates(
    dashboard: Site, browser: Browser, reached: dict[str, str]
) -> None:
    context = browser.new_context(base_url=dashboard.address, timezone_id="Asia/Tokyo")
    page = context.new_page()
    sign_in(page, dashboard)

    for name, part in WITH_MOMENTS.items():
        page.goto(reached[name])
        moment = page.locator(f"{part} time[data-moment]").first
        expect(moment).to_be_visible(timeout=PATIENCE_MS)
        page.wait_for_function(NONE_IN_UTC, timeout=PATIENCE_MS)
        expect(moment).to_have_attribute("title", re.compile(r" UTC$"))
        shown = page.evaluate(IN_TOKYO, moment.get_attribute("datetime"))
        expect(moment).to_have_text(shown)
    for name, part in WITH_SENTENCES.items():
        page.goto(reached.get(name, name))
        sentence = page.locator(part, has_text=" UTC").first
        expect(sentence).to_have_text(BOTH_ZONES, timeout=PATIENCE_MS)
        found = BOTH_ZONES.search(sentence.text_content() or "")
        assert found is not None
        local, day, clock = found.groups()
        assert page.evaluate(IN_TOKYO, f"{day}T{clock}Z") == local
    page.goto("/pipelines/flight_delays/")
    wait_until_live(page)
    context.set_offline(True)
    banner = page.locator("#offline")
    expect(banner).to_have_text(CLOCK_IN_BOTH, timeout=PATIENCE_MS)
    tokyo, utc = (int(hour) for hour in CLOCK_IN_BOTH.findall(banner.text_content() or "")[0])
    assert (tokyo - utc) % 24 == 9
    context.close()


@pytest.mark.parametrize(("zone", "typed", "utc"), TYPED, ids=[each[0] for each in TYPED])
def test_times_are_typed_in_the_viewers_zone_and_sent_in_utc(
    dashboard: Site, browser: Browser, zone: str, typed: str, utc: str
) -> None:
    context = browser.new_context(base_url=dashboard.address, timezone_id=zone)
    page = context.new_page()
    sign_in(page, dashboard)
    page.goto("/events/")
    expect(page.locator("#id_since_helptext")).to_have_text(zone)
    page.fill("#id_since", typed)
    expect(page.locator("#id_since_helptext")).to_have_text(f"{zone}; {utc} UTC")

    for _ in range(2):  # the second time with the value that came back
        with page.expect_navigation():
            page.locator("main form [type=submit]").click()

        assert f"&since={quote(utc.replace(' ', 'T'), safe='')}&until=" in page.url
        expect(page.locator("#id_since")).to_have_value(typed)
        expect(page.locator("#id_since_helptext")).to_have_text(f"{zone}; {utc} UTC")
    context.close()


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_table_of_all_pipelines_fits_at_desk_width(
    signed_in: BrowserContext, width: int
) -> None:
    """Holds for any length of the name of the operator that holds others up."""
    page = signed_in.new_page()
    page.set_viewport_size({"width": width, "height": 900})

    page.goto("/")

    expect(page.locator("#region-fleet tbody tr")).not_to_have_count(0)
    assert page.locator("#region-fleet .scroll").evaluate(IS_WHOLE_WITH_LONG_NAMES)
    page.close()


@pytest.mark.parametrize("name", TOLD_IN)
def test_a_phone_shows_each_event_beside_its_time_without_scrolling(
    signed_in: BrowserContext, reached: dict[str, str], name: str
) -> None:
    """The event is beside its time, even if the time shows another day."""
    page = page_that_stays(signed_in, reached[name])
    page.set_viewport_size(WIDTHS["phone"])
    table = page.locator(f"{TOLD_IN[name]} .scroll table")
    expect(table.locator("thead th").nth(1)).to_have_text("What")

    table.locator("time").evaluate_all(AS_OF_ANOTHER_DAY)

    assert table.evaluate(ARE_IN_SIGHT)
    page.close()


@pytest.mark.parametrize("name", ["checkpoint", "measured-lab"])
def test_charts_redraw_after_a_resize_as_if_loaded_at_that_width(
    signed_in: BrowserContext, reached: dict[str, str], name: str
) -> None:
    """Charts adapt even if no news arrives to redraw them, as when the connection is cut."""
    page = signed_in.new_page()
    sizes = {}
    for width, size in WIDTHS.items():
        page.set_viewport_size(size)
        page.goto(reached[name], wait_until="load")
        draw_all(page)
        sizes[width] = page.wait_for_function(DRAWN, timeout=PATIENCE_MS).json_value()
        assert sizes[width]

    for width in ("desk", "phone"):
        page.set_viewport_size(WIDTHS[width])
        page.wait_for_function(IS_DRAWN_AS, arg=sizes[width], timeout=PATIENCE_MS)
    page.close()


def test_an_open_dialog_is_accessible_and_fits_its_window(signed_in: BrowserContext) -> None:
    page = signed_in.new_page()
    page.goto("/pipelines/flight_delays/")
    wait_until_live(page)

    page.click("#act-kill")

    dialog = page.locator("#dialog")
    expect(dialog.locator("#id_reason")).to_be_visible()
    for size in WIDTHS.values():
        page.set_viewport_size(size)
        assert dialog.evaluate(IS_WHOLE)
        page.emulate_media(color_scheme="light")
        assert objections(page, STANDARDS, within="dialog") == ""
        page.emulate_media(color_scheme="dark")
        assert objections(page, COLOURS, within="dialog") == ""
    page.close()


def test_every_action_form_is_accessible_fits_its_window_and_logs_nothing(
    signed_in: BrowserContext, reached: dict[str, str]
) -> None:
    """On a phone in light, at a desk in dark; `act` and `settings-action` are tested above, too.

    A form sent without a reason comes back with the errors, so each button reaches the server.
    """
    page = signed_in.new_page()
    said = complaints_of(page)

    for address in forms(signed_in.request, reached):
        page.set_viewport_size(WIDTHS["phone"])
        page.emulate_media(color_scheme="light")
        page.goto(address)
        assert page.locator("main form[method=post]").count() == 1, address
        assert not page.evaluate(SIDEWAYS), address
        assert objections(page, STANDARDS) == "", address
        page.set_viewport_size(WIDTHS["desk"])
        page.emulate_media(color_scheme="dark")
        assert not page.evaluate(SIDEWAYS), address
        assert objections(page, COLOURS) == "", address
        assert said == []
        page.locator("main form[method=post] [type=submit]").click()
        expect(page.locator("main .errorlist").first).to_be_visible()
        said.clear()  # the refusal is expected
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_sign_in_page_is_accessible_and_logs_nothing(
    dashboard: Site, browser: Browser, width: str
) -> None:
    page = browser.new_page(viewport=WIDTHS[width])
    said = complaints_of(page)

    page.goto(dashboard.address + "/login/")

    assert objections(page, STANDARDS) == ""
    assert not page.evaluate(SIDEWAYS)
    assert said == []
    page.close()


def page_that_stays(signed_in: BrowserContext, address: str) -> Page:
    """Opens a page with its parts; nothing is replaced afterwards."""
    page = signed_in.new_page()
    page.set_viewport_size(WIDTHS["desk"])
    page.emulate_media(reduced_motion="reduce")
    page.add_init_script(WALKING)
    page.route(NOT_NEEDED, lambda route: route.abort())
    page.goto(address, wait_until="load")
    page.wait_for_function(NOTHING_IS_ASKED, timeout=PATIENCE_MS)
    return page


def action_of(address: str) -> str:
    return urlsplit(address).path.split("/")[-2]


def forms(signed_in: APIRequestContext, reached: dict[str, str]) -> list[str]:
    """Returns an address for the form of each action."""
    found = [f"/pipelines/flight_delays/{action}/" for action in ACTIONS]
    links = "".join(signed_in.get(reached[page]).text() for page in ("settings", "alerts"))
    for action in settings_page.ACTIONS:
        (link, *_) = re.findall(rf'href="(/settings/{SHOWN_FOR.get(action, action)}/[^"]*)"', links)
        found.append(html.unescape(link).replace(SHOWN_FOR.get(action, action), action))
    return [*found, *(reached[name] for name in ("submit", "start-game-day", "start-lab"))]


def objections(page: Page, rules: Rules, *, within: str | None = None) -> str:
    axe = Axe("") if page.evaluate("'axe' in window") else Axe()  # reading it takes a while
    found = axe.run(page, within, options={"resultTypes": ["violations"]} | rules)
    return "" if not found.violations_count else str(found.generate_report())
