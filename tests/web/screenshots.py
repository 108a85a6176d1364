"""Pictures of the pages for the documentation, of a simulated pipeline.

    python -m tests.web.screenshots [DIRECTORY]

Writes NAME.png for each page, as `docs/reference/dashboard.md` shows it. Needs a Chromium.
"""

import argparse
import os
import tempfile
from pathlib import Path

import django
from playwright.sync_api import BrowserContext, FloatRect, ViewportSize

from tests.web.addresses import PAGES, reached_by_links, reached_states

SEEN_AS = {
    "compare-savepoints": "compared",
    "lab": "measured-lab",
    "pipeline-game-days": "game-days",
    "remove-flink-cluster": "watch-flink",
    "remove-watched-query": "watch-query",
    "savepoint-state": "state-in-rows",
}
"""Pages that another picture also shows, or shows with more content."""

PICTURES = sorted({SEEN_AS.get(name, name) for name in PAGES})
DESK = ViewportSize(width=1280, height=800)
HEIGHT_MAX = {"checkpoint": 2_000, "pipeline": 1_900}
"""Other pages show what fits on a screen at once, and half as much again."""
HEIGHT = "document.documentElement.scrollHeight"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("docs/pictures"))
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")
    django.setup()

    from tests.web.browser_site import chromium, sign_in, simulated_dashboard

    with (
        tempfile.TemporaryDirectory() as home,
        simulated_dashboard(Path(home)) as site,
        chromium() as browser,
    ):
        context = browser.new_context(base_url=site.address, viewport=DESK)
        sign_in(context.new_page(), site)
        take(context, directory)


def take(context: BrowserContext, directory: Path) -> None:
    from tests.web.browser_site import draw_all  # needs Django set up

    reached = reached_by_links(context.request)
    reached |= reached_states(context.request, reached)
    page = context.new_page()
    for name in PICTURES:
        page.goto(reached[name])
        draw_all(page)
        height = min(page.evaluate(HEIGHT), HEIGHT_MAX.get(name, 1_200))
        clip = FloatRect(x=0, y=0, width=DESK["width"], height=height)
        page.screenshot(path=directory / f"{name}.png", full_page=True, clip=clip)


if __name__ == "__main__":
    main()
