"""Programs that call the API, and a run for them to ask about."""

from typing import Any

from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import TokenScope
from ftdash.accounts.services import create_token
from ftdash.jobs.models import Run
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection.projector import Projector
from tests.web.journals import Story, new_request, new_run

ADDRESSED = {
    "name": "flights",
    "run_id": "flights-1",
    "checkpoint_id": 1,
    "request_id": "request-1",
    "jid": "0" * 32,
    "key": 1,
    "savepoint_key": "flights-1-1",
    "kind": "METRICS",
    "person": "olaf",
    "token": "deploy",
    "channel": "ops",
}
"""The parts of addresses for what `running` makes, and names for what the tests make themselves."""


def bearer(scope: TokenScope = TokenScope.ACT, name: str = "deploy", **options: Any) -> Client:
    """Returns a client with a token, and without any cookie."""
    secret = create_token(name=name, scope=scope, created_by="ada", reason="x").secret
    return Client(headers={"Authorization": f"Bearer {secret}"}, **options)


def running() -> None:
    """Makes a run that has recovered from a failure, and a request that waits for its end."""
    run = new_run()
    new_request(run)
    Story(run).started().sampled().completed().slot_killed().sampled()
    Projector().run_once()
    beat()


def beat() -> None:
    """Records signs of life of the projector and the drivers, as of now."""
    now = {"at": timezone.now(), "pid": 1}
    Heartbeat.objects.update_or_create(name=HeartbeatName.PROJECTOR, defaults=now)
    Run.objects.exclude(last_event_at=None).update(last_event_at=timezone.now())
