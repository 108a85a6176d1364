"""The Celery tasks of audits."""

from celery import shared_task

from ftdash.audits import services


@shared_task(ignore_result=True)
def start_audit(audit_key: int) -> None:
    """Start the process of a stored audit."""
    services.start(audit_key)
