"""The threads of a slot that upload snapshots, and when its subtasks make way for them.

On a machine without an idle processor, these threads compete with subtasks that always have work,
and take several times as long as their work. So while they starve, a subtask that has handed over
its own part of the checkpoint takes no input for a moment. It still handles mail and barriers.
`MakingWay` decides when, and reads no clock.
"""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from pipelines.domain.clock import Clock
from pipelines.domain.errors import check

UPLOAD_THREADS = 2

LATE_MS = 50.0
"""Uploads that are done sooner get no help."""

LOOK_MS = 150.0
"""Longer than a subtask works on one piece (`pipeline.coalescing.max-work`)."""

STARVING = 0.7
"""Uploads that get less than this share of one processor starve, or wait for the store."""

LONGEST_MS = 500.0
"""Subtasks make way no longer than this (and one look), until all uploads are done."""

Taken = ParamSpec("Taken")
Result = TypeVar("Result")


def never() -> bool:
    """Returns whether uploads starve where they have no threads of their own."""
    return False


@dataclass(slots=True, kw_only=True)
class Uploads:
    """A time without a pause between uploads. `at_ms` and `spent_ms` are of the newest look."""

    at_ms: float
    spent_ms: float
    underway: int = 1
    look_ms: float = LATE_MS
    made_way_ms: float = 0.0
    get_way: bool = False
    are_left_alone: bool = False


class MakingWay:
    """Guarantee: subtasks make way only while it helps, and never longer than `LONGEST_MS`.

    If the uploads get no more of the processor with the way free, they wait for the store. All
    times are monotonic; `spent_ms` is the processor time of all upload threads.
    """

    def __init__(self) -> None:
        self._uploads: Uploads | None = None

    @property
    def is_idle(self) -> bool:
        return self._uploads is None

    def on_started(self, now_ms: float, spent_ms: float) -> None:
        if self._uploads is None:
            self._uploads = Uploads(at_ms=now_ms, spent_ms=spent_ms)
        else:
            self._uploads.underway += 1

    def on_ended(self) -> None:
        uploads = self._uploads
        check(uploads is not None, "an upload ends once")
        if uploads is not None:
            uploads.underway -= 1
            if uploads.underway == 0:
                self._uploads = None

    def makes_way(self, now_ms: float, spent_ms: float) -> bool:
        uploads = self._uploads
        if uploads is None:
            return False
        if not uploads.are_left_alone and now_ms - uploads.at_ms >= uploads.look_ms:
            self._look(uploads, now_ms, spent_ms)
        return uploads.get_way

    def _look(self, uploads: Uploads, now_ms: float, spent_ms: float) -> None:
        passed_ms = now_ms - uploads.at_ms
        starve = spent_ms - uploads.spent_ms < STARVING * passed_ms
        if uploads.get_way:
            uploads.made_way_ms += passed_ms
            uploads.are_left_alone = starve or uploads.made_way_ms >= LONGEST_MS
            uploads.get_way = not uploads.are_left_alone
        else:
            uploads.get_way = starve
        uploads.at_ms, uploads.spent_ms, uploads.look_ms = now_ms, spent_ms, LOOK_MS


class UploadThreads(Executor):
    """Starts its threads at once: if a subtask started one, it would inherit its priority."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="upload")
        all_of_them = threading.Barrier(UPLOAD_THREADS)

        def processor_clock() -> int:
            all_of_them.wait()
            if sys.platform == "linux":
                return time.pthread_getcpuclockid(threading.get_ident())
            return time.CLOCK_MONOTONIC  # uploads that seem to run all the time never starve

        started = [self._threads.submit(processor_clock) for _ in range(UPLOAD_THREADS)]
        self._processor_clocks = [each.result() for each in started]
        self._lock = threading.Lock()
        self._making_way = MakingWay()  # guarded by the lock

    def submit(
        self, work: Callable[Taken, Result], /, *given: Taken.args, **options: Taken.kwargs
    ) -> Future[Result]:
        with self._lock:
            self._making_way.on_started(self._clock.monotonic_ms(), self._spent_ms())
        future = self._threads.submit(work, *given, **options)
        future.add_done_callback(self._on_done)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def starve(self) -> bool:
        """Returns True while a subtask should take no input, so that uploads get on."""
        if self._making_way.is_idle:  # by far the most often, so without the lock
            return False
        with self._lock:
            return self._making_way.makes_way(self._clock.monotonic_ms(), self._spent_ms())

    def _spent_ms(self) -> float:
        return sum(time.clock_gettime(each) for each in self._processor_clocks) * 1000

    def _on_done(self, future: Future[Result]) -> None:
        with self._lock:
            self._making_way.on_ended()
