"""The threads of a slot that upload snapshots, and when its subtasks make way for them.

On a machine without an idle processor, these threads compete with subtasks that always have work,
and wait for a processor twice as long as they work. So while they do, a subtask that has handed
over its own part of the checkpoint takes no input for a moment. It still handles mail and barriers.
`MakingWay` decides when, and reads no clock.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from pipelines.domain.clock import Clock
from pipelines.domain.errors import check

UPLOAD_THREADS = 2

LATE_MS = 50.0
"""Uploads that are done sooner get no help."""

LOOK_MS = 150.0
"""Longer than a subtask works on one piece (`pipeline.coalescing.max-work`)."""

STARVING = 0.2
"""Uploads that wait for a processor for a greater share of the time starve."""

BUSY = 0.5
"""Uploads that run, or wait for a processor, for less of the time wait for the store."""

LONGEST_MS = 500.0
"""After so long, subtasks make way no more until all uploads are done."""

Taken = ParamSpec("Taken")
Result = TypeVar("Result")


def never() -> bool:
    """Returns whether uploads starve where they have no threads of their own."""
    return False


@dataclass(frozen=True, slots=True)
class Spent:
    """What all upload threads of a slot have spent so far, in ms."""

    running_ms: float
    waiting_ms: float  # for a processor, not for the store or a lock


@dataclass(slots=True, kw_only=True)
class Uploads:
    """A time without a pause between uploads. `at_ms` and `spent` are of the newest look."""

    at_ms: float
    spent: Spent
    underway: int = 1
    look_ms: float = LATE_MS
    made_way_ms: float = 0.0
    get_way: bool = False
    are_left_alone: bool = False


class MakingWay:
    """Guarantee: subtasks make way only for uploads that lack a processor, only while those can use
    it, and no longer than `LONGEST_MS` and one look.

    All times are monotonic.
    """

    def __init__(self) -> None:
        self._uploads: Uploads | None = None

    @property
    def is_idle(self) -> bool:
        return self._uploads is None

    @property
    def makes_way(self) -> bool:
        return self._uploads is not None and self._uploads.get_way

    def on_started(self, now_ms: float, spent: Callable[[], Spent]) -> None:
        if self._uploads is None:
            self._uploads = Uploads(at_ms=now_ms, spent=spent())
        else:
            self._uploads.underway += 1

    def on_ended(self) -> None:
        uploads = self._uploads
        check(uploads is not None, "an upload ends once")
        if uploads is not None:
            uploads.underway -= 1
            if uploads.underway == 0:
                self._uploads = None

    def on_time(self, now_ms: float, spent: Callable[[], Spent]) -> None:
        """Asks for what was `spent` only when it is time to look."""
        uploads = self._uploads
        if uploads is None or uploads.are_left_alone or now_ms - uploads.at_ms < uploads.look_ms:
            return
        passed_ms, before, uploads.spent = now_ms - uploads.at_ms, uploads.spent, spent()
        uploads.at_ms, uploads.look_ms = now_ms, LOOK_MS
        waited_ms = uploads.spent.waiting_ms - before.waiting_ms
        if not uploads.get_way:
            uploads.get_way = waited_ms > STARVING * passed_ms
            return
        uploads.made_way_ms += passed_ms
        used_ms = uploads.spent.running_ms - before.running_ms + waited_ms
        is_enough = used_ms < BUSY * passed_ms or uploads.made_way_ms >= LONGEST_MS
        uploads.are_left_alone, uploads.get_way = is_enough, not is_enough


class UploadThreads(Executor):
    """Starts its threads at once, to know their ids. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="upload")
        all_of_them = threading.Barrier(UPLOAD_THREADS)

        def thread_id() -> int:
            all_of_them.wait()
            return threading.get_native_id()

        started = [self._threads.submit(thread_id) for _ in range(UPLOAD_THREADS)]
        self._thread_ids = [each.result() for each in started]
        self._lock = threading.Lock()
        self._making_way = MakingWay()  # guarded by the lock

    def submit(
        self, work: Callable[Taken, Result], /, *given: Taken.args, **options: Taken.kwargs
    ) -> Future[Result]:
        with self._lock:
            self._making_way.on_started(self._clock.monotonic_ms(), self._spent)
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
            self._making_way.on_time(self._clock.monotonic_ms(), self._spent)
            return self._making_way.makes_way

    def _spent(self) -> Spent:
        found = [processor_times_of(each) for each in self._thread_ids]
        return Spent(sum(ran for ran, _ in found), sum(waited for _, waited in found))

    def _on_done(self, future: Future[Result]) -> None:
        with self._lock:
            self._making_way.on_ended()


def processor_times_of(thread_id: int) -> tuple[float, float]:
    """Returns for how long a thread of this process ran, and waited for a processor, in ms.

    Only Linux tells (`schedstat`); elsewhere both are 0, and so no upload ever starves.
    """
    try:
        ran, waited, _ = Path(f"/proc/self/task/{thread_id}/schedstat").read_text().split()
    except OSError:
        return 0.0, 0.0
    return int(ran) / 1e6, int(waited) / 1e6
