"""The Celery tasks of audits."""

from celery import shared_task

from ftdash.audits import process


@shared_task(ignore_result=True)
def start_audit(audit_key: int) -> None:
    """Start the process of a stored audit."""
    process.start(audit_key)
