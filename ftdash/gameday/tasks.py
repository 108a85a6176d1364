"""The Celery tasks of game days: each ends within seconds and is safe to repeat."""

from celery import shared_task

from ftdash.gameday import services


@shared_task(ignore_result=True)
def carry_on(key: int) -> None:
    """Check one game day."""
    services.carry_on(key)


@shared_task(ignore_result=True)
def reconcile_game_days() -> None:
    """Check all game days that are under way."""
    services.reconcile()
