"""What services publish for the worker, caught where it goes to the broker."""

import pytest

from ftdash import errands


def catch_errands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each with the name of its task and the key of its row."""
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(
        errands.current_app, "send_task", lambda name, key, **_: sent.append((name, *key))
    )
    return sent
