"""The Celery tasks of history: each ends within seconds and is safe to repeat."""

from celery import shared_task

from ftdash.retention import packages, pruning


@shared_task(ignore_result=True)
def prune_history() -> None:
    """Delete what has reached its age limit; what takes too long goes on in the next task."""
    if pruning.prune():
        prune_history.delay()


@shared_task(ignore_result=True)
def shorten_run_files() -> None:
    """Delete old or excessive files in the directories of runs, and packages without use."""
    pruning.shorten_journals()
    pruning.shorten_logs()
    pruning.forget_old_requests()
    packages.sweep()
