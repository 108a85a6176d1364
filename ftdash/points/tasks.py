"""The Celery tasks of recovery points: each ends within seconds and is safe to repeat."""

from celery import shared_task

from ftdash.errands import Errand, publish
from ftdash.points.services import comparisons, disposal


@shared_task(ignore_result=True)
def dispose_of_savepoint(request_key: int) -> None:
    """Delete the files of a savepoint that no run needs."""
    disposal.dispose_of(request_key)


@shared_task(ignore_result=True)
def inspect_point(inspection_key: int) -> None:
    """Read a recovery point, a second's worth at a time."""
    if comparisons.go_on_inspecting(inspection_key):
        publish(Errand.INSPECT_POINT, inspection_key)


@shared_task(ignore_result=True)
def compare_points(comparison_key: int) -> None:
    """Compare two recovery points, a second's worth at a time."""
    if comparisons.go_on_comparing(comparison_key):
        publish(Errand.COMPARE_POINTS, comparison_key)
