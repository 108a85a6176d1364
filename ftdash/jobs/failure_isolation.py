"""Keeps the failure of one run or request from holding up what is done for the others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from pipelines.bus.journal_reading import JournalCutShort, UndecodableEvent
from pipelines.domain.errors import Rejected, Retryable

OF_ONE_RUN = (OSError, psutil.Error, Retryable, Rejected, UndecodableEvent, JournalCutShort)
"""A disk, a process that is gone, a journal that cannot be read. A database that is away fails for
all of them alike, and a bug must be seen: both pass through."""

log = logging.getLogger("ftdash.rounds")


@contextmanager
def isolated(what: str) -> Iterator[None]:
    """Around what a round that comes again does for one of many."""
    try:
        yield
    except OF_ONE_RUN as error:
        log.error("%s has to wait: %s", what, error)
