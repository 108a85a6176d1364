"""What Celery runs for history: within seconds, and safe to repeat."""

from celery import shared_task

from ftdash.retention import journals, pruning, request_marks, run_logs


@shared_task(ignore_result=True)
def prune_history() -> None:
    """Delete what is older than it is kept; what takes too long goes on in the next task."""
    if pruning.prune():
        prune_history.delay()


@shared_task(ignore_result=True)
def shorten_run_files() -> None:
    """Delete what in the directories of runs is old, or too much."""
    journals.shorten_journals()
    run_logs.shorten_logs()
    request_marks.forget_old_requests()
