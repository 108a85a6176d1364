"""The Celery tasks of upgrades: each ends within seconds and is safe to repeat."""

from celery import shared_task

from ftdash.upgrades import services


@shared_task(ignore_result=True)
def carry_on(key: int) -> None:
    """Look at one upgrade, and do what is due."""
    services.carry_on(key)


@shared_task(ignore_result=True)
def reconcile_upgrades() -> None:
    """Look at all upgrades that are under way."""
    services.reconcile()
