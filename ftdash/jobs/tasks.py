"""What Celery runs: the control plane's errands, each done within seconds and safe to repeat."""

from celery import shared_task

from ftdash.jobs import audit_process, comparing, delivery, disposal, inspection, supervision


@shared_task(ignore_result=True)
def start_run(run_key: int) -> None:
    """Start a driver for a run that has none."""
    supervision.supervise_run(run_key)


@shared_task(ignore_result=True)
def deliver_request(request_key: int) -> None:
    """Hand a request to the run's driver."""
    delivery.deliver(request_key)


@shared_task(ignore_result=True)
def dispose_of_savepoint(request_key: int) -> None:
    """Delete the files of a savepoint that nobody needs."""
    disposal.dispose_of(request_key)


@shared_task(ignore_result=True)
def inspect_point(inspection_key: int) -> None:
    """Read a recovery point, a second's worth at a time."""
    if inspection.go_on(inspection_key):
        inspect_point.delay(inspection_key)


@shared_task(ignore_result=True)
def compare_points(comparison_key: int) -> None:
    """Compare two recovery points, a second's worth at a time."""
    if comparing.go_on(comparison_key):
        compare_points.delay(comparison_key)


@shared_task(ignore_result=True)
def start_audit(audit_key: int) -> None:
    """Start the process of an audit that was asked for."""
    audit_process.start(audit_key)


@shared_task(ignore_result=True)
def reconcile() -> None:
    """Compare what should run with what runs, and repair."""
    supervision.reconcile()
