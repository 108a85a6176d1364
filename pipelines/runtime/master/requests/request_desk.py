"""Takes commands from the inbox and gives each exactly one answer.

The inbox is a directory that a thread of this desk polls; everything else happens on the job
master's thread.
"""

import threading
from collections.abc import Callable

from pipelines.bus.inbox import Inbox
from pipelines.domain.commands import Cancel, DriverCommand
from pipelines.domain.errors import Retryable
from pipelines.domain.events import Event, RequestAccepted, RequestEnded
from pipelines.domain.ids import RequestId
from pipelines.domain.status import RequestOutcome
from pipelines.runtime.master.job_events import CommandArrived, JobEvent, WorkFailed

INBOX_PERIOD_S = 0.05


def is_cancelled(inbox: Inbox) -> bool:
    """Returns True if the inbox has a cancellation; leaves it there for a desk that opens later."""
    return any(isinstance(each, Cancel) for each in inbox.pending())


class RequestDesk:
    def __init__(
        self, inbox: Inbox, emit: Callable[[Event], None], post: Callable[[JobEvent], None]
    ) -> None:
        self._inbox = inbox
        self._emit = emit
        self._post = post
        self._waiting: set[RequestId] = set()
        self._closed = threading.Event()

    def open(self) -> None:
        threading.Thread(target=self._watch, name="inbox", daemon=True).start()

    def accept(self, command: DriverCommand) -> None:
        self._waiting.add(command.request_id)
        self._emit(RequestAccepted(request_id=command.request_id))

    def was_taken_up(self, request_id: RequestId) -> bool:
        """Returns True if an earlier driver took the request up and died before answering it."""
        return self._inbox.was_taken_up(request_id)

    def answer(
        self,
        request_id: RequestId | None,
        outcome: RequestOutcome,
        message: str,
        path: str | None = None,
    ) -> None:
        """Ignores None (there was no request), and a request that was answered before."""
        if request_id is None or request_id not in self._waiting:
            return
        self._waiting.remove(request_id)
        self._emit(RequestEnded(request_id=request_id, outcome=outcome, message=message, path=path))
        self._inbox.done(request_id)

    def conclude(
        self, request_id: RequestId, outcome: RequestOutcome, message: str, path: str
    ) -> None:
        """Answers a request that an earlier driver may have accepted."""
        self._waiting.add(request_id)
        self.answer(request_id, outcome, message, path)

    def close(self, why: str) -> None:
        """Answers every request that still waits, because the run is over."""
        self._closed.set()
        for request_id in sorted(self._waiting):
            self.answer(request_id, RequestOutcome.FAILED, why)

    def _watch(self) -> None:
        """Ends the driver if it cannot read commands: it must not seem to accept them."""
        try:
            self._pass_on_commands()
        except OSError as error:
            away = Retryable(f"The requests of the run cannot be read: {error}.")
            self._post(WorkFailed(away))
        except Exception as error:
            self._post(WorkFailed(error))

    def _pass_on_commands(self) -> None:
        seen: set[RequestId] = set()
        while not self._closed.wait(INBOX_PERIOD_S):
            for command in self._inbox.pending():
                if command.request_id not in seen:
                    seen.add(command.request_id)
                    self._post(CommandArrived(command))
