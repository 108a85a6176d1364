"""Errands: each names a task of the worker; a late one is dropped if a beat follows."""

from typing import Any

import pytest
from celery import current_app

from ftdash import settings as installed
from ftdash.errands import Errand, publish


def test_each_errand_is_a_task_of_the_worker() -> None:
    current_app.loader.import_default_modules()

    assert {errand.value for errand in Errand} <= set(current_app.tasks)


def test_a_call_to_send_alerts_that_waited_too_long_in_the_queue_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(current_app, "send_task", lambda *_, **options: sent.append(options))

    publish(Errand.DELIVER_ALERTS)

    assert [options["expires"] for options in sent] == [installed.ALERT_PERIOD_S]
