"""Reads Flink's routes as a program with a token does, for the first run of `flights`."""

import secrets
from typing import Any

from ftdash.accounts.models import TokenScope
from ftdash.api.flink.names import job_id
from tests.web.api_callers import bearer

JOB = job_id("flights-1")


def read(route: str, status: int = 200, **parameters: str) -> Any:
    """Returns the body that the route answers with; `ID` in the route is replaced by the job."""
    client = bearer(TokenScope.READ, name=f"reader-{secrets.token_hex(4)}")
    answer = client.get(f"/v1/{route.replace('ID', JOB)}", parameters)
    assert answer.status_code == status, answer.content
    return answer.json()
