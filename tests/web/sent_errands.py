"""Catches the messages that services publish for the worker, on their way to the broker."""

import pytest

from ftdash import errands


def catch_errands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Returns the messages: the name of the task and the key of the row of each."""
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(
        errands.current_app, "send_task", lambda name, key, **_: sent.append((name, *key))
    )
    return sent
