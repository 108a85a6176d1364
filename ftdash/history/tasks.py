"""What Celery runs for history: within seconds, and safe to repeat."""

from celery import shared_task

from ftdash.history import journals, pruning


@shared_task(ignore_result=True)
def prune_history() -> None:
    """Delete what is older than it is kept; what takes too long goes on in the next task."""
    if pruning.prune():
        prune_history.delay()


@shared_task(ignore_result=True)
def shorten_journals() -> None:
    """Delete what of the journals is older than it is kept."""
    journals.shorten_journals()
