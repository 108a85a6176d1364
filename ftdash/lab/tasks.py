"""The Celery tasks of the lab: each ends within seconds and is safe to repeat."""

from celery import shared_task

from ftdash.lab import services


@shared_task(ignore_result=True)
def reconcile_labs() -> None:
    """Start a requested lab, and end one that has died."""
    services.reconcile()
