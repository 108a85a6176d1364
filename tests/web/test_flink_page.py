"""Flink's web page: only for signed-in users, only from its folder, under a policy of its own."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "web"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<base href='./'>Apache Flink Web Dashboard")
    (folder / "assets" / "main.js").write_text("1")
    (tmp_path / "secret").write_text("secret")
    settings.FLINK_WEB = str(folder)
    return folder


def test_the_page_and_its_files_are_served_after_a_sign_in(operator: Client) -> None:
    page = operator.get("/flink/")

    assert b"".join(page) == b"<base href='./'>Apache Flink Web Dashboard"
    script = operator.get("/flink/assets/main.js")
    assert (script.status_code, script["Content-Type"]) == (200, "text/javascript")
    assert operator.get("/flink/config").json()["flink-version"] == "2.3.0"


@pytest.mark.parametrize("address", ["/flink/", "/flink/assets/main.js"])
def test_a_visitor_without_a_session_is_sent_to_the_sign_in(address: str) -> None:
    assert Client().get(address)["Location"].startswith("/login/")


def test_rest_routes_under_the_page_answer_401_without_a_session() -> None:
    assert Client().get("/flink/jobs/overview").status_code == 401


@pytest.mark.parametrize("name", ["../secret", "%2e%2e/secret", "assets/../../secret", "assets"])
def test_nothing_outside_the_folder_is_served(operator: Client, name: str) -> None:
    answer = operator.get(f"/flink/{name}")

    assert answer.status_code in (302, 400, 404)
    assert "secret" not in str(answer.get("Location", ""))


def test_only_the_flink_page_has_its_content_security_policy(operator: Client) -> None:
    policy = operator.get("/flink/")["Content-Security-Policy"]

    assert "base-uri 'self'" in policy
    script = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert script.startswith("script-src 'self' 'unsafe-hashes' 'sha256-")
    assert "unsafe-inline" not in script
    assert "unsafe-hashes" not in operator.get("/")["Content-Security-Policy"]


@pytest.mark.parametrize("configured", ["", "/nowhere"])
def test_without_the_folder_there_is_no_page(
    operator: Client, settings: Any, configured: str
) -> None:
    settings.FLINK_WEB = configured

    assert operator.get("/flink/").status_code == 404
    assert operator.get("/flink/pyproject.toml").status_code == 404


def test_the_page_may_only_be_read(operator: Client) -> None:
    assert operator.post("/flink/").status_code == 405
