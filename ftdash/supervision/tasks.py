"""The Celery tasks of supervision: each ends within seconds and is safe to repeat."""

from celery import shared_task

from ftdash.supervision import delivery, drivers


@shared_task(ignore_result=True)
def start_run(run_key: int) -> None:
    """Start a driver for a run that has none."""
    drivers.supervise_run(run_key)


@shared_task(ignore_result=True)
def deliver_request(request_key: int) -> None:
    """Deliver a request to the run's driver."""
    delivery.deliver(request_key)


@shared_task(ignore_result=True)
def reconcile() -> None:
    """Compare what should run with what runs, and repair the differences."""
    drivers.reconcile()
