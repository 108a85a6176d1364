"""A program in place of a person at the dashboard: signs in and posts the forms of the pages.

It uses the web server as a browser does, with a session and a CSRF token. It knows the addresses
and the fields of the forms, and nothing behind them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urldefrag

import httpx
from django.urls import reverse
from django.utils.html import strip_tags

from ftdash.embedded.installation import Account
from pipelines.domain.errors import Rejected
from pipelines.domain.status import KillMoment

TIMEOUT_S = 20.0
ANSWER_LENGTH_MAX = 500
REQUEST_MARK = "request-"


class DashboardClient:
    """One browser session at one server."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=TIMEOUT_S)

    def __enter__(self) -> "DashboardClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def sign_in(self, account: Account) -> None:
        login = reverse("login")
        with answering(login):
            self._client.get(login).raise_for_status()
        self._post(login, {"username": account.name, "password": account.password or ""})
        if "sessionid" not in self._client.cookies:
            raise Rejected(f"The dashboard did not let {account.name} sign in.")

    def act(self, pipeline: str, action: str, reason: str, **fields: str) -> str:
        """Ask for an action on the pipeline's page; returns the id of the stored request."""
        form = {"reason": reason, "confirmation": pipeline, **fields}
        answer = self._post(reverse("act", args=[pipeline, action]), form)
        mark = urldefrag(str(answer.headers.get("location", ""))).fragment
        if not mark.startswith(REQUEST_MARK):
            raise Rejected(f"The dashboard refused to {action} {pipeline}: {text_of(answer)}")
        return mark.removeprefix(REQUEST_MARK)

    def kill_slot(self, pipeline: str, slot: int, moment: KillMoment, reason: str) -> str:
        return self.act(pipeline, "kill", reason, slot=str(slot), moment=moment.value)

    def restore(self, pipeline: str, path: str, parallelism: int, reason: str) -> str:
        return self.act(pipeline, "restore", reason, path=path, parallelism=str(parallelism))

    def _post(self, path: str, form: Mapping[str, str]) -> httpx.Response:
        token = self._client.cookies.get("csrftoken") or ""
        with answering(path):
            return self._client.post(path, data=dict(form), headers={"X-CSRFToken": token})


@contextmanager
def answering(path: str) -> Iterator[None]:
    """Wraps a request: describes its errors in a sentence."""
    try:
        yield
    except httpx.HTTPError as failure:
        raise Rejected(f"The dashboard did not answer to {path}: {failure!r}.") from failure


def text_of(answer: httpx.Response) -> str:
    """What a person would read, shortened."""
    words = " ".join(strip_tags(answer.text).split())
    return f"status {answer.status_code}: {words[:ANSWER_LENGTH_MAX]}"
