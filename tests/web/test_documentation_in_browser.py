"""The documentation in a real browser: its scripts run under the policy, and its search works."""

import os
import re
import subprocess
import sys

import pytest
from playwright.sync_api import Browser, expect

from tests.web.browser_site import CHROMIUM, PATIENCE_MS, ROOT, Site, complaints_of, sign_in

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH and no FTDASH_CHROMIUM"),
]


def test_a_reader_searches_the_documentation_and_opens_a_result(
    dashboard: Site, browser: Browser
) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "docs"],
        env={**os.environ, **dashboard.environment},
        check=True,
    )
    page = browser.new_page(base_url=dashboard.address)
    sign_in(page, dashboard)
    said = complaints_of(page)

    page.get_by_role("link", name="Docs").click()
    # Types key by key: the page searches when a key is released, which `fill` does not trigger.
    page.get_by_role("textbox", name="Search").press_sequentially("tolerable-failed-checkpoints")
    # Results of the first letters appear, and change while the rest is typed.
    links = page.locator(".md-search-result__link[href*='/reference/settings/']")
    found = links.filter(has_text="tolerable-failed-checkpoints").first
    found.click(timeout=PATIENCE_MS)

    expect(page).to_have_url(re.compile("/docs/reference/settings/.*#.*tolerable"))
    assert said == []
    page.close()
