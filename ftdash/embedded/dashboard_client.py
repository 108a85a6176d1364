"""A person at the dashboard, without the person: signs in and posts the forms of the pages."""

from collections.abc import Mapping

import httpx
from django.urls import reverse

from ftdash.embedded.accounts import Account
from pipelines.domain.errors import Rejected

TIMEOUT_S = 20.0


class DashboardClient:
    """One browser session: its cookies, and the token that proves a form is the site's own."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=TIMEOUT_S, follow_redirects=True)

    def __enter__(self) -> "DashboardClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def sign_in(self, account: Account) -> None:
        login = reverse("login")
        self._client.get(login).raise_for_status()
        self.post(login, {"username": account.name, "password": account.password or ""})
        if "sessionid" not in self._client.cookies:
            raise Rejected(f"The dashboard did not let {account.name} sign in.")

    def post(self, path: str, form: Mapping[str, str]) -> httpx.Response:
        """Raises Rejected with what the page said if it did not accept the form."""
        token = self._client.cookies.get("csrftoken") or ""
        answer = self._client.post(path, data=dict(form), headers={"X-CSRFToken": token})
        if answer.is_error:
            raise Rejected(f"The dashboard answered {answer.status_code} to {path}: {answer.text}")
        return answer
