"""The Celery tasks of alerts: each ends within seconds and is safe to repeat."""

from celery import shared_task
from django.utils import timezone

from ftdash.alerts import delivery, evaluation
from ftdash.errands import Errand, publish


@shared_task(ignore_result=True)
def evaluate_alerts() -> None:
    """Judge all rules once."""
    evaluation.evaluate(timezone.now())


@shared_task(ignore_result=True)
def deliver_alerts() -> None:
    """Send due messages; what takes too long for one task goes on in the next."""
    if delivery.deliver_due():
        publish(Errand.DELIVER_ALERTS)
