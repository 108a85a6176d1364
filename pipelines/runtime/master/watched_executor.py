"""Runs work outside the job master's thread, and returns its failures to that thread.

The work handles the failures of the world itself. Any other failure is a bug, and would end in a
future that is never read: a manifest that never comes, a storage that is never swept again.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from pipelines.runtime.master.job_events import JobEvent, WorkFailed

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class WatchedExecutor(Executor):
    """Guarantee: every exception of the work is posted as `WorkFailed`, which ends the driver."""

    def __init__(self, executor: Executor, post: Callable[[JobEvent], None]) -> None:
        self._executor = executor
        self._post = post

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        future = self._executor.submit(work, *args, **options)
        future.add_done_callback(self._on_done)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _on_done(self, future: Future[T]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            log.error("Work beside the job master's thread failed.", exc_info=error)
            self._post(WorkFailed(error))
