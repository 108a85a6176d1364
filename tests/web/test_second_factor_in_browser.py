"""The second factor and the company's sign-in in Chromium, which simulates a security key."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.new_home import new_home
from tests.openid_provider import Provider, openid_provider, person
from tests.reserved_ports import reserved_port
from tests.web.browser_site import Site, complaints_of, go_when_up

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PASSWORD = "correct horse battery"
MAKE_ADMIN = """
import django
django.setup()
from django.contrib.auth.models import User
User.objects.create_superuser("ada", password="correct horse battery")
"""
VIRTUAL_KEY = {
    "protocol": "ctap2",
    "transport": "usb",
    "hasResidentKey": False,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    olga = person("1", preferred_username="olga", groups=["data"])
    with openid_provider(olga) as provider:
        yield provider


@pytest.fixture(scope="module")
def installation(
    provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["SignInSite"]:
    with reserved_port() as port, reserved_port() as nowhere:
        site = SignInSite(new_home(tmp_path_factory.mktemp("home")), port, nowhere)
        site.provider = provider
        subprocess.run([sys.executable, "-c", MAKE_ADMIN], env=site.environment, check=True)
        site.start_web()
        try:
            yield site
        finally:
            site.stop_web()


class SignInSite(Site):
    provider: Provider

    @property
    def address(self) -> str:
        return f"http://localhost:{self.port}"  # keys need a name, not an IP address

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "FTDASH_OIDC_ISSUER": self.provider.issuer,
            "FTDASH_OIDC_CLIENT_ID": "ftdash",
            "FTDASH_OIDC_SECRET": "any",
            "FTDASH_OPERATOR_GROUPS": "data",
        }


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context: BrowserContext = browser.new_context(viewport={"width": 390, "height": 844})
    yield context.new_page()
    context.close()


def test_a_security_key_can_be_added_used_and_removed(installation: SignInSite, page: Page) -> None:
    said = complaints_of(page)
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": VIRTUAL_KEY})
    by_password(page, installation)

    page.goto(f"{installation.address}/second-factor/")
    page.get_by_role("link", name="Add a security key").click()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Continue").click()
    keep_picture(page, "add-key")
    page.get_by_role("button", name="Add the key").click()
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    keep_picture(page, "recovery-codes")

    page.goto(f"{installation.address}/settings/")
    page.get_by_role("button", name="Sign out").click()
    by_password(page, installation)
    expect(page.get_by_role("heading", name="Second factor")).to_be_visible()
    keep_picture(page, "ask")
    page.get_by_role("button", name="Use a security key").click()
    expect(page.get_by_role("heading", name="Pipelines")).to_be_visible()

    page.goto(f"{installation.address}/second-factor/")
    keep_picture(page, "factors")
    page.get_by_role("link", name="Remove Security key 1").click()
    page.get_by_role("link", name="Use a security key").click()
    keep_picture(page, "again")
    page.get_by_role("button", name="Use a security key").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("You have none")).to_be_visible()
    assert said == []


def test_a_person_signs_in_with_the_company_account_and_sees_their_session(
    installation: SignInSite, page: Page
) -> None:
    go_when_up(page, f"{installation.address}/login/?next=/settings/")
    keep_picture(page, "sign-in")
    page.get_by_role("link", name="Sign in with your company's account").click()
    page.get_by_role("button", name="1", exact=True).click()

    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    expect(page.locator("#sessions")).to_contain_text("this one")
    keep_picture(page, "settings")


def test_a_person_outside_all_groups_reads_why_the_sign_in_was_refused(
    installation: SignInSite, page: Page
) -> None:
    installation.provider.tell("2", {"preferred_username": "sven", "groups": ["chess"]})
    go_when_up(page, f"{installation.address}/login/")
    page.get_by_role("link", name="Sign in with your company's account").click()
    page.get_by_placeholder("sub").fill("2")
    page.get_by_placeholder("sub").press("Enter")

    expect(page.get_by_role("alert")).to_contain_text("none of your groups opens ftdash")
    keep_picture(page, "refused")


def by_password(page: Page, site: SignInSite) -> None:
    go_when_up(page, f"{site.address}/login/")
    page.fill("#id_username", "ada")
    page.fill("#id_password", PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def keep_picture(page: Page, name: str) -> None:
    """Saves a picture for a person to look at, if FTDASH_PICTURES names a directory."""
    if directory := os.environ.get("FTDASH_PICTURES"):
        page.screenshot(path=str(Path(directory) / f"{name}.png"), full_page=True)
