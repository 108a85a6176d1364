"""The answer when no page can be made: whose fault it is, and that the pipelines continue."""

import pytest
from django.db import OperationalError
from django.test import Client

from ftdash.runs.queries import pipelines as queries

pytestmark = pytest.mark.usefixtures("site")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            OperationalError("connection refused"),
            503,
            "The dashboard cannot show the state of any pipeline. Running pipelines do not need the"
            " database: they continue, take checkpoints and recover by themselves.",
        ),
        (
            RuntimeError("a mistake of ours"),
            500,
            "The reason is in the log of the web server. Running pipelines are not affected.",
        ),
    ],
)
def test_a_page_that_cannot_be_made_says_why_and_that_pipelines_continue(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, said: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("django.contrib.auth.middleware.get_user", fails)  # the first reader
    monkeypatch.setattr(queries, "fleet", fails)
    client.raise_request_exception = False

    answer = client.get("/")

    assert answer.status_code == status
    assert said in " ".join(answer.content.decode().split())
    assert answer.headers.get("Retry-After") == ("5" if status == 503 else None)
