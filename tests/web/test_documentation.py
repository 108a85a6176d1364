"""The documentation: complete where generated, strict where written, and served safely."""

import mimetypes
import re
import urllib.parse
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse

from ftdash.documentation import generated_pages
from ftdash.documentation import site as documentation_site
from ftdash.documentation.site import inline_scripts
from ftdash.prometheus.families import FAMILIES
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.protocol.restart import MOVES
from tests.web.people import operator_user, signed_in

ROOT = Path(__file__).parents[2]
PAGE = '<script src="a.js"></script><script>first()</script><script id="x">second()</script>'

LINK = re.compile(r"\]\(([^)]+)\)")
PLACE = re.compile(r"`([\w.]+/[\w/.-]*)`")
FOLDERS = (".", "pipelines", "ftdash", "pipelines/connectors", "pipelines/runtime")
"""The folders that a path in ARCHITECTURE.md may be relative to."""

HELP = re.compile(r"{% block help %}([^{]+){% endblock %}")


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the real site by one of two files."""
    directory = tmp_path / "documentation" / "site"
    (directory / "how-to").mkdir(parents=True)
    (directory / "index.html").write_text(PAGE)
    (directory / "how-to" / "index.html").write_text("<p>guides</p>")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr("ftdash.documentation.site.current_site", lambda: directory)
    return directory


@pytest.fixture
def reader(site: Path) -> Client:
    return signed_in(operator_user())


def test_the_documentation_requires_a_sign_in(built: Path, db: None) -> None:
    answer = Client().get(reverse("documentation"))

    assert answer.status_code == 302
    assert urllib.parse.urlparse(answer["Location"]).path == reverse("login")


def test_a_folder_serves_its_index_page(built: Path, reader: Client) -> None:
    answer = reader.get("/docs/how-to", follow=True)

    assert answer.redirect_chain == [("/docs/how-to/", 302)]
    assert answer.content == b"<p>guides</p>"


def test_a_picture_has_its_content_type_even_if_the_system_does_not_know_it(
    built: Path, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mimetypes, "guess_type", mimetypes.MimeTypes().guess_type)
    (built / "disk-full-dark.webp").write_bytes(b"RIFF")

    assert reader.get("/docs/disk-full-dark.webp")["Content-Type"] == "image/webp"


@pytest.mark.parametrize("path", ["../../secret", "..%2f..%2fsecret", "/etc/passwd"])
def test_nothing_outside_the_site_is_served(built: Path, reader: Client, path: str) -> None:
    assert reader.get(f"/docs/{path}").status_code in (400, 404)


def test_the_inline_scripts_of_a_page_are_allowed_and_no_others(
    built: Path, reader: Client
) -> None:
    policy = reader.get("/docs/")["Content-Security-Policy"]

    script_sources = re.search(r"script-src ([^;]*)", policy)
    assert script_sources is not None
    assert script_sources[1].split() == ["'self'", *inline_scripts(built / "index.html")]
    assert len(inline_scripts(built / "index.html")) == 2
    assert "unsafe" not in script_sources[1]


def test_a_missing_site_names_the_command_that_builds_it(
    reader: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftdash.documentation.site.current_site", lambda: tmp_path / "none")

    answer = reader.get("/docs/")

    assert answer.status_code == 503
    assert "manage.py docs" in answer.content.decode()


def test_every_setting_metric_command_and_address_is_documented() -> None:
    settings = "\n".join(generated_pages.settings_page())
    metrics = "\n".join(generated_pages.metrics_page())
    commands = "\n".join(generated_pages.commands_page())
    addresses = "\n".join(generated_pages.rest_page())

    assert [each.key for each in DEFINITIONS if f"### `{each.key}`" not in settings] == []
    assert [name for name in FAMILIES if f"| `{name}` |" not in metrics] == []
    assert {"## `demo`", "### `pipeline submit`", "### `pipeline restore`"} <= set(
        commands.splitlines()
    )
    assert "`--reason REASON`" in commands
    assert "## `POST /api/pipelines/{name}/savepoints`" in addresses


def test_the_diagram_of_a_runs_states_has_every_state_and_move() -> None:
    page = "\n".join(generated_pages.run_states_page())
    drawn = ElementTree.fromstring(re.search("<svg.*</svg>", page, re.DOTALL)[0])

    moves = {(e.get("data-from"), e.get("data-to")) for e in drawn.iter() if e.get("data-from")}
    assert moves == {(state, to) for state, successors in MOVES.items() for to in successors}
    assert {text.text for text in drawn.iter("text")} == set(MOVES)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_has_the_help_of_every_page(
    tmp_path: Path,
) -> None:
    call_command("docs", directory=tmp_path / "site", strict=True)
    helps = {path: HELP.search(path.read_text()) for path in pages_of_the_dashboard()}
    assert [path.name for path, help in helps.items() if help is None] == []
    for help in filter(None, helps.values()):
        page, _, anchor = help[1].partition("#")
        text = (tmp_path / "site" / page / "index.html").read_text()
        assert not anchor or f'id="{anchor}"' in text, help[1]

    assert (
        "flight_delays"
        in (tmp_path / "site" / "tutorials" / "first-pipeline" / "index.html").read_text()
    )
    assert (tmp_path / "site" / "reference" / "settings" / "index.html").is_file()


@pytest.mark.slow
def test_a_broken_link_fails_a_strict_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[nowhere](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: broken\n")
    settings.FILES_DIR = tmp_path
    monkeypatch.setattr(documentation_site, "CONFIGURATION", tmp_path / "mkdocs.yml")

    with pytest.raises(CommandError, match="MkDocs cannot build the documentation"):
        call_command("docs", directory=tmp_path / "site", strict=True)

    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_and_paths_named_outside_the_site_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in LINK.findall(text) if not link.startswith("https://")]

    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
    assert [
        place
        for place in PLACE.findall(text)
        if not any((ROOT / folder / place).exists() for folder in FOLDERS)
    ] == []


def pages_of_the_dashboard() -> list[Path]:
    """Returns the templates of whole pages that users see once they have signed in."""
    templates = ROOT / "templates"
    without_help = {"404.html", "403.html", "out_of_order.html", "missing.html", "live.html"}
    return [
        path
        for path in templates.rglob("*.html")
        if path.read_text().startswith("{% extends")
        and path.name not in without_help
        and path.parent.name != "registration"
    ]
