"""Reads the fleet page in a real browser, and takes the next step that it offers.

The browser runs in a separate thread, because its event loop would keep Django from querying the
database.
"""

import base64
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from playwright.sync_api import Browser, Locator, Page, TimeoutError, ViewportSize

from ftdash.embedded.demo import Account
from tests.web.browser_site import chromium, go_when_up, wait_until_live

T = TypeVar("T")
CLICK_MS = 60_000
DESK, TELEPHONE = ViewportSize(width=1024, height=560), ViewportSize(width=390, height=844)
LOOKS: tuple[tuple[str, Literal["light", "dark"], ViewportSize], ...] = (
    ("light", "light", DESK),
    ("dark", "dark", DESK),
    ("390", "light", TELEPHONE),
)
QUALITY = 60
MARGIN = 24  # pixels below the notice
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
NOTICES = "main .notice, #offline"
DONE = "the drill takes the next step"


@dataclass(frozen=True, slots=True)
class Named:
    """`at_s` is monotonic, or None if the page did not name the cause in time."""

    at_s: float | None
    text: str  # what the page said


@dataclass(frozen=True, slots=True)
class Taken:
    """`clicks` is None if the step was not found, or was refused."""

    clicks: int | None
    text: str


class Offered(Protocol):
    """The step that a notice has to offer: the buttons to press from it on, or its advice."""

    @property
    def steps(self) -> tuple[str, ...]: ...
    @property
    def given(self) -> str: ...
    @property
    def is_outside(self) -> bool: ...
    @property
    def is_pressed(self) -> bool: ...


class Reader:
    """One person at one page. You may call its public methods from any thread."""

    def __init__(self, browser: Browser, thread: ThreadPoolExecutor, address: str) -> None:
        self._thread, self._address = thread, address
        self._page: Page = browser.new_context(viewport=DESK).new_page()
        self._page.set_default_timeout(CLICK_MS)

    def sign_in(self, account: Account) -> None:
        self._page.context.set_default_timeout(CLICK_MS)
        go_when_up(self._page, f"{self._address}login/?next=/")
        self._page.fill("#id_username", account.name)
        self._page.fill("#id_password", account.password or "")
        self._page.click("button[type=submit]")
        self._page.locator("h1").wait_for()

    def open_fleet(self) -> None:
        self._in_thread(self._open_fleet)

    def named(self, words: tuple[str, ...], within_s: float) -> Named:
        """Waits until one notice of the page has all `words`, which are regular expressions."""
        return self._in_thread(lambda: self._named(words, within_s))

    def take(self, words: tuple[str, ...], offered: "Offered") -> Taken:
        """Takes the step that the notice with these words offers."""
        return self._in_thread(lambda: self._take(words, offered))

    def notices(self) -> list[str]:
        return self._in_thread(lambda: _texts(self._page.locator(NOTICES)))

    def take_pictures(self, words: tuple[str, ...], directory: Path, name: str) -> None:
        """Takes pictures of the page down to the notice with these words.

        It takes one in light, one in dark, and one at the width of a telephone.
        """
        self._in_thread(lambda: self._take_pictures(words, directory, name))

    def _in_thread(self, question: Callable[[], T]) -> T:
        return self._thread.submit(question).result()

    def _open_fleet(self) -> None:
        go_when_up(self._page, self._address)
        wait_until_live(self._page)

    def _notice(self, words: tuple[str, ...]) -> Locator:
        found = self._page.locator(NOTICES)
        for each in words:
            found = found.filter(has_text=re.compile(each))
        return found.first

    def _named(self, words: tuple[str, ...], within_s: float) -> Named:
        try:
            notice = self._notice(words)
            notice.wait_for(timeout=1000 * within_s)
            return Named(time.monotonic(), _plain(notice.inner_text()))
        except TimeoutError:
            return Named(None, " | ".join(_texts(self._page.locator(NOTICES))) or "nothing")

    def _take(self, words: tuple[str, ...], offered: "Offered") -> Taken:
        notice = self._notice(words)
        if offered.is_outside:
            return self._read_step(words, offered.steps[0])
        try:
            for number, step in enumerate(offered.steps):
                place = self._page.locator("main") if number else notice
                with self._page.expect_navigation():
                    place.locator("a.button").filter(has_text=re.compile(step)).first.click()
            return self._pressed(offered)
        except TimeoutError as why:
            seen = _texts(self._page.locator("main a.button"))
            return Taken(None, f"{str(why).splitlines()[0]} The page offers: {' | '.join(seen)}")

    def _read_step(self, words: tuple[str, ...], step: str) -> Taken:
        """Reads a step outside the dashboard, which may come a moment after the sentence."""
        try:
            notice = self._notice((*words, step))
            notice.wait_for()
            return Taken(0, _plain(notice.inner_text()))
        except TimeoutError:
            return Taken(None, _plain(self._notice(words).inner_text()))

    def _pressed(self, offered: "Offered") -> Taken:
        form = self._page.locator("main form", has=self._page.locator("#id_reason"))
        form.wait_for()
        title = self._page.locator("main h2").first.inner_text()
        held = form.evaluate("form => new URLSearchParams(new FormData(form)).toString()")
        if not re.search(offered.given, held):
            return Taken(None, f"{title}: the form does not hold {offered.given!r}")
        clicks = len(offered.steps) + 1
        if not offered.is_pressed:
            return Taken(clicks, title)
        form.locator("#id_reason").fill(DONE)
        name = form.locator("#id_confirmation")
        if name.count():
            name.fill(self._page.url.split("/")[4])
        before = self._page.url
        with self._page.expect_navigation():
            form.locator("button[type=submit]").click()
        if self._page.url.partition("?")[0] == before.partition("?")[0]:
            refusals = _texts(self._page.locator("main :is(.refusal, .errorlist)"))
            return Taken(None, f"{title} was refused: {' '.join(refusals)}")
        done = " ".join(_texts(self._page.locator("main .notice.is-good")))
        return Taken(clicks, f"{title}. {done}")

    def _take_pictures(self, words: tuple[str, ...], directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for look, scheme, size in LOOKS:
            self._page.emulate_media(color_scheme=scheme)
            self._page.set_viewport_size(size)
            self._page.evaluate("scrollTo(0, 0)")
            self._page.evaluate(DRAWN)
            (directory / f"{name}-{look}.webp").write_bytes(self._picture(words, size))
        self._page.emulate_media(color_scheme="light")
        self._page.set_viewport_size(DESK)

    def _picture(self, words: tuple[str, ...], size: ViewportSize) -> bytes:
        """Takes a picture through Chromium itself, which writes WebP; Playwright's are larger."""
        place = self._notice(words).bounding_box()
        height = place["y"] + place["height"] + MARGIN if place else size["height"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}
        wanted = {"format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True}
        session = self._page.context.new_cdp_session(self._page)
        try:
            return base64.b64decode(session.send("Page.captureScreenshot", wanted)["data"])
        finally:
            session.detach()


def _plain(text: str) -> str:
    return " ".join(text.split())


def _texts(found: Locator) -> list[str]:
    return [_plain(each) for each in found.all_inner_texts() if each.strip()]


@contextmanager
def reader(address: str, account: Account) -> Iterator[Reader]:
    """Opens a browser and signs in."""
    with ThreadPoolExecutor(1) as thread:
        browsers = chromium()
        browser = thread.submit(browsers.__enter__).result()
        try:
            found = thread.submit(Reader, browser, thread, address).result()
            thread.submit(found.sign_in, account).result()
            yield found
        finally:
            thread.submit(browsers.__exit__, None, None, None).result()
