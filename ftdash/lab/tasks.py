"""What Celery runs for the lab: within seconds, and safe to repeat."""

from celery import shared_task

from ftdash.lab import services


@shared_task(ignore_result=True)
def reconcile_labs() -> None:
    """Start the lab that was asked for, and end one that has died."""
    services.reconcile()
