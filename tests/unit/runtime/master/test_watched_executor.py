"""The job master's thread hears of every error on its other threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

from pipelines.runtime.master.job_events import JobEvent, WatchedExecutor, WorkFailed


def test_only_failed_work_is_posted_together_with_its_error() -> None:
    posted: list[JobEvent] = []
    executor = WatchedExecutor(ThreadPoolExecutor(1), posted.append)

    fine = executor.submit(divmod, 7, 2)
    failed = executor.submit(divmod, 7, 0)
    executor.shutdown()

    error = failed.exception()
    assert fine.result() == (3, 1)
    assert isinstance(error, ZeroDivisionError)
    assert posted == [WorkFailed(error)]


def test_work_that_is_cancelled_before_it_starts_has_not_failed() -> None:
    posted: list[JobEvent] = []
    executor = WatchedExecutor(ThreadPoolExecutor(1), posted.append)
    may_end = threading.Event()
    executor.submit(may_end.wait)
    dropped = executor.submit(divmod, 7, 0)

    executor.shutdown(wait=False, cancel_futures=True)
    may_end.set()
    executor.shutdown()

    assert dropped.cancelled()
    assert posted == []
