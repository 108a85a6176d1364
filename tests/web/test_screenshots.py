"""The documentation's pictures: one for each page and each incident, and each is used."""

import re

from bench.drill.incidents import INCIDENTS
from bench.drill.reading import LOOKS
from tests.web.browser_site import ROOT
from tests.web.screenshots import PICTURES

OF_INCIDENTS_BYTES_MAX = 4_000_000
SHOWN = re.compile(r"!\[[^\]]+\]\(\.\./pictures/([a-z-]+)\.png\)")


def test_every_page_has_a_picture_that_the_documentation_shows_once() -> None:
    kept = [path.stem for path in (ROOT / "docs" / "pictures").iterdir() if path.is_file()]
    shown = SHOWN.findall((ROOT / "docs" / "reference" / "dashboard.md").read_text())

    assert sorted(kept) == PICTURES
    assert sorted(shown) == PICTURES


def test_each_incident_of_the_drill_has_a_section_with_small_pictures() -> None:
    text = (ROOT / "docs" / "explanation" / "incidents.md").read_text()
    sections = re.findall(r"^## .+ \{ #([a-z-]+) \}$", text, re.MULTILINE)
    shown = re.findall(r"\(\.\./pictures/incidents/([a-z0-9-]+\.webp)(?:#only-[a-z]+)?\)", text)
    kept = list((ROOT / "docs" / "pictures" / "incidents").iterdir())
    wanted = [f"{name}-{look}.webp" for name in INCIDENTS for look, _, _ in LOOKS]

    assert sections == list(INCIDENTS)
    assert shown == wanted
    assert sorted(path.name for path in kept) == sorted(wanted)
    assert sum(path.stat().st_size for path in kept) < OF_INCIDENTS_BYTES_MAX
