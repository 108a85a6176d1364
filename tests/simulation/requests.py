"""Requests of people to a simulated run."""

import random

from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    DriverCommand,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.status import SavepointFormat


def drawn_point(rng: random.Random, asker: dict[str, str]) -> DriverCommand:
    if rng.random() < 0.3:
        return TriggerCheckpoint(**asker)
    return TakeSavepoint(format=rng.choice(list(SavepointFormat)), **asker)


def drawn_end(rng: random.Random, asker: dict[str, str], *, is_last: bool) -> DriverCommand:
    """Draining ends event time, so nothing can follow it, and only the last run may be drained."""
    form = rng.choice(list(SavepointFormat))
    if is_last:
        return StopWithSavepoint(format=form, drain=True, **asker)
    kind = rng.choice([StopWithSavepoint, CancelWithSavepoint, Cancel])
    return kind(**asker) if kind is Cancel else kind(format=form, **asker)
