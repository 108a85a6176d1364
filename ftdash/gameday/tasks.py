"""What Celery runs for game days: within seconds, and safe to repeat."""

import logging
from datetime import datetime

from celery import shared_task
from kombu.exceptions import OperationalError

log = logging.getLogger("ftdash.gameday")


@shared_task(ignore_result=True)
def carry_on(key: int) -> None:
    """One look at one game day."""
    from ftdash.gameday import services  # which names this task

    services.carry_on(key)


@shared_task(ignore_result=True)
def reconcile_game_days() -> None:
    """One look at all that are under way."""
    from ftdash.gameday import services

    services.reconcile()


def carry_on_later(key: int, at: datetime) -> None:
    """Without a broker reconcile does it, up to a period later."""
    try:
        carry_on.apply_async(args=(key,), eta=at)
    except OperationalError as error:
        log.warning("The broker is away, the game day waits for reconcile: %s", error)
