"""The pictures of the documentation: of each page there is one, and it is shown."""

import re

from tests.web.browser_site import ROOT
from tests.web.screenshots import PICTURES

SHOWN = re.compile(r"!\[[^\]]+\]\(\.\./pictures/([a-z-]+)\.png\)")


def test_there_is_a_picture_of_every_page_and_the_documentation_shows_it_once() -> None:
    kept = [path.stem for path in (ROOT / "docs" / "pictures").iterdir()]
    shown = SHOWN.findall((ROOT / "docs" / "reference" / "dashboard.md").read_text())

    assert sorted(kept) == PICTURES
    assert sorted(shown) == PICTURES
