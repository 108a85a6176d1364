"""What may go wrong with one run or request without holding up what is done for the others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from pipelines.bus.journal_reading import JournalCutShort, UndecodableEvent
from pipelines.domain.errors import Rejected, Retryable

TROUBLE = (OSError, psutil.Error, Retryable, Rejected, UndecodableEvent, JournalCutShort)
"""A disk, a process that is gone, a journal that cannot be read. A database that is away is
nobody's own trouble, and a bug is to be seen."""

log = logging.getLogger("ftdash.trouble")


@contextmanager
def others_go_on(what: str) -> Iterator[None]:
    """Around what is done for one of many in a round that comes again."""
    try:
        yield
    except TROUBLE as error:
        log.error("%s has to wait: %s", what, error)
