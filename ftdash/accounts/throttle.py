"""Counts wrong tokens by address, in memory: the 21st within a minute and later ones get 429.

Wrong tokens never lock out a right one; otherwise one broken script behind a proxy would stop all
others. 256 random bits need no lock: this only saves the log, and the caller's time.
"""

import logging

from django.core.cache import cache

log = logging.getLogger("ftdash.accounts")

FAILURES_MAX = 20
WINDOW_S = 60


def count_failure(address: str) -> bool:
    """True if there were too many within the window, including this one."""
    key = f"wrong-tokens-{address.replace(':', '_')}"
    cache.add(key, 0, WINDOW_S)
    try:
        count = cache.incr(key)
    except ValueError:  # the window has ended in between
        return False
    if count == 1 or count == FAILURES_MAX + 1:
        log.warning("Wrong API token from %s (%s within a minute).", address, count)
    return count > FAILURES_MAX
