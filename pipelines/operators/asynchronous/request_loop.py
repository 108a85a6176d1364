"""One asyncio loop in a thread of its own, on which the requests of one subtask run.

The subtask's thread hands requests over and takes answers; it never waits for them. The loop ends
with `close`, or when Python collects the object, so that a killed subtask leaves no thread behind.

Source: Flink's `AsyncWaitOperator`, `RetryableAsyncOperatorDelegator`.
"""

import asyncio
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeAlias

import pyarrow as pa
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from pipelines.domain.errors import Rejected
from pipelines.operators.asynchronous.request_queue import Answer, Work

LONGEST_RETRY_DELAY = timedelta(seconds=30)
CLOSES_WITHIN_S = 10.0
"""How long a subtask that ends waits for the author's `close`."""

NumberedRequest: TypeAlias = tuple[Work, int]
AsyncCall: TypeAlias = Callable[[Any], Awaitable[Any]]


class AsyncFunction:
    """A function that needs a client: each subtask has a copy, and opens and closes it on its loop.

    Source: Flink's `RichAsyncFunction`.
    """

    async def open(self) -> None:
        """Called once, before the first request: make the client here."""

    async def invoke(self, row: Any) -> Any:
        """Makes one request. `row` is a dictionary, or a batch in `map_batches_async`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Called when the input has ended; not called when the process dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """The limits of requests. `timeout` is for one request with all its retries.

    After a timeout, `timed_out` returns the result instead. The delay before a retry doubles each
    time, up to 30 s.
    """

    capacity: int
    timeout: timedelta
    is_ordered: bool
    retries: int = 0
    retry_delay: timedelta = timedelta(milliseconds=100)
    retry_on: tuple[type[Exception], ...] = (Exception,)
    timed_out: Callable[[Any], Any] | None = None

    def check(self) -> None:
        """Raises Rejected naming the value at fault."""
        if self.capacity < 1:
            raise Rejected(f"A capacity of {self.capacity} asks nothing; give 1 or more.")
        if self.timeout <= timedelta(0):
            raise Rejected(f"A timeout of {self.timeout} leaves no time; give more than 0.")
        if self.retries < 0 or self.retry_delay < timedelta(0):
            raise Rejected("Neither retries nor their delay can be negative.")


def check_async(function: AsyncCall | AsyncFunction) -> None:
    """Raises Rejected if a call would run in the subtask's thread, which must not wait."""
    called = getattr(function, "__call__", function)  # noqa: B004 - an object may have one
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
    if not isinstance(function, AsyncFunction) and not is_async:
        raise Rejected("The function is no coroutine: write `async def`, or use map.")


class RequestLoop:
    """Used by the subtask's thread. The loop's thread calls `wake` after each answer."""

    def __init__(
        self,
        name: str,
        function: AsyncCall | AsyncFunction,
        policy: RequestPolicy,
        wake: Callable[[], None],
    ) -> None:
        self._answers: SimpleQueue[tuple[Work, int, Answer]] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._runner = _Runner(function, policy, self._answers, wake)
        self._thread = threading.Thread(
            target=_run, args=(self._loop, self._runner), name=f"requests of {name}", daemon=True
        )
        self._thread.start()
        self._finalizer = weakref.finalize(self, _stop, self._loop)

    def ask(self, requests: Iterable[tuple[NumberedRequest, Any]]) -> None:
        """Starts the requests in this order; each comes with the argument for the function."""
        batch = list(requests)
        if batch:
            self._loop.call_soon_threadsafe(self._runner.start, batch)

    def answered(self) -> list[tuple[Work, int, Answer]]:
        """Returns the answers that arrived since the last call."""
        return [self._answers.get() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        """Gives up pending requests and closes the author's function; raises what that raises."""
        try:
            closing = asyncio.run_coroutine_threadsafe(self._runner.close(), self._loop)
            closing.result(CLOSES_WITHIN_S)
        finally:
            self._finalizer()
            self._thread.join(CLOSES_WITHIN_S)


class _Runner:
    """Makes the requests. Used on the loop only."""

    def __init__(
        self,
        function: AsyncCall | AsyncFunction,
        policy: RequestPolicy,
        answers: "SimpleQueue[tuple[Work, int, Answer]]",
        wake: Callable[[], None],
    ) -> None:
        self._function = function if isinstance(function, AsyncFunction) else None
        self._call: AsyncCall = function.invoke if isinstance(function, AsyncFunction) else function
        self._policy = policy
        self._answers = answers
        self._wake = wake
        self._retrying = AsyncRetrying(
            stop=stop_after_attempt(policy.retries + 1),
            wait=wait_exponential(
                multiplier=policy.retry_delay.total_seconds(),
                max=LONGEST_RETRY_DELAY.total_seconds(),
            ),
            retry=retry_if_exception_type(policy.retry_on),
            reraise=True,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None

    def start(self, requests: list[tuple[NumberedRequest, Any]]) -> None:
        loop = asyncio.get_running_loop()
        if self._function is not None and self._opening is None:
            self._opening = loop.create_task(self._function.open())
        for request, argument in requests:
            task = loop.create_task(self._answer(request, argument))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._function is not None and self._opening is not None:
            self._opening = None
            await self._function.close()

    async def _answer(self, request: NumberedRequest, argument: Any) -> None:
        try:
            if self._opening is not None:
                await asyncio.shield(self._opening)
            answer = await self._within_time(argument)
        except Exception as error:  # an author's function may raise anything
            answer = Answer(error=error)
        self._answers.put((*request, answer))
        self._wake()

    async def _within_time(self, argument: Any) -> Answer:
        timeout_s = self._policy.timeout.total_seconds()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return Answer(await self._tried(argument))
        except TimeoutError as error:
            if not limit.expired():
                raise
            if self._policy.timed_out is not None:
                return Answer(self._policy.timed_out(argument), is_late=True)
            what = "batch" if isinstance(argument, pa.RecordBatch) else f"row {argument}"
            raise TimeoutError(f"no answer within {timeout_s:g} s for the {what}") from error

    async def _tried(self, argument: Any) -> Any:
        """Each request has a copy of the policy, which counts its attempts."""
        if self._policy.retries == 0:
            return await self._call(argument)
        return await self._retrying.copy()(self._call, argument)


def _run(loop: asyncio.AbstractEventLoop, runner: _Runner) -> None:
    """Runs the loop. Connections do not outlive it, even if `close` was never called."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(runner.close())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
