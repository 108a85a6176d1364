"""What Celery runs for game days: within seconds, and safe to repeat."""

from celery import shared_task

from ftdash.gameday import services


@shared_task(ignore_result=True)
def carry_on(key: int) -> None:
    """One look at one game day."""
    services.carry_on(key)


@shared_task(ignore_result=True)
def reconcile_game_days() -> None:
    """One look at all that are under way."""
    services.reconcile()
