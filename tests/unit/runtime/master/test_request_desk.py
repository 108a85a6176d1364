"""The driver takes up each request of a person, or says that it cannot read its inbox."""

import queue
from typing import TYPE_CHECKING, cast

from pipelines.domain.commands import Cancel, DriverCommand
from pipelines.domain.errors import Retryable
from pipelines.domain.ids import RequestId
from pipelines.runtime.master.job_events import CommandArrived, JobEvent, WorkFailed
from pipelines.runtime.master.requests.request_desk import RequestDesk

if TYPE_CHECKING:
    from pipelines.bus.inbox import Inbox

TIMEOUT_S = 20.0
COMMAND = Cancel(request_id=RequestId("a"), requested_by="ann", reason="enough")


class Scripted:
    """An inbox that has one command and then does not answer."""

    def __init__(self, error: Exception) -> None:
        self._looks = iter([[COMMAND], [COMMAND], error])

    def pending(self) -> list[DriverCommand]:
        found = next(self._looks)
        if isinstance(found, Exception):
            raise found
        return cast("list[DriverCommand]", found)


def test_a_command_is_posted_once_and_an_unreadable_inbox_is_a_failure() -> None:
    heard = heard_of(OSError("stale file handle"))

    assert heard[0] == CommandArrived(COMMAND)
    assert isinstance(heard[1], WorkFailed)
    assert isinstance(heard[1].error, Retryable)
    assert str(heard[1].error) == "The requests of the run cannot be read: stale file handle."


def test_a_bug_on_the_inbox_thread_is_posted_to_the_master() -> None:
    bug = TypeError("a bug of the inbox")

    assert heard_of(bug)[1] == WorkFailed(bug)


def heard_of(error: Exception) -> list[JobEvent]:
    posted: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
    desk = RequestDesk(cast("Inbox", Scripted(error)), lambda event: None, posted.put)
    desk.open()
    return [posted.get(timeout=TIMEOUT_S) for _ in range(2)]
