"""Keeps a failure of one run or request from delaying the work for the others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from pipelines.bus.journal import JournalCutShort, UndecodableEvent
from pipelines.domain.errors import Rejected, Retryable

OF_ONE_RUN = (OSError, psutil.Error, Retryable, Rejected, UndecodableEvent, JournalCutShort)
"""Errors of a disk, a process that is gone, an unreadable journal. An absent database fails for all
of them alike, and bugs must be seen: both pass through."""

log = logging.getLogger("ftdash.rounds")


@contextmanager
def isolated(what: str) -> Iterator[None]:
    """Wraps the work for one of many, in a round that is repeated."""
    try:
        yield
    except OF_ONE_RUN as error:
        log.error("%s has to wait: %s", what, error)
