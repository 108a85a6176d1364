"""Reads Flink's routes as a program with a token does, of the first run of `flights`."""

import secrets
from typing import Any

from django.utils import timezone

from ftdash.accounts.models import TokenScope
from ftdash.api.flink.names import job_id
from ftdash.jobs.models import Run
from ftdash.metrics.models import Heartbeat, HeartbeatName
from tests.web.api_callers import bearer

JOB = job_id("flights-1")


def read(route: str, status: int = 200, **parameters: str) -> Any:
    """What the route answers with; `ID` stands for the job."""
    client = bearer(TokenScope.READ, name=f"reader-{secrets.token_hex(4)}")
    answer = client.get(f"/v1/{route.replace('ID', JOB)}", parameters)
    assert answer.status_code == status, answer.content
    return answer.json()


def beat() -> None:
    """The projector and the drivers have just been heard of."""
    now = {"at": timezone.now(), "pid": 1}
    Heartbeat.objects.update_or_create(name=HeartbeatName.PROJECTOR, defaults=now)
    Run.objects.exclude(last_event_at=None).update(last_event_at=timezone.now())
