"""The outcomes of people's requests."""

from pipelines.domain.events.base import Event
from pipelines.domain.ids import RequestId
from pipelines.domain.status import RequestOutcome


class RequestAccepted(Event, frozen=True, kw_only=True):
    request_id: RequestId


class RequestEnded(Event, frozen=True, kw_only=True):
    """The one terminal state of a request. `path` is the savepoint, if one was taken."""

    request_id: RequestId
    outcome: RequestOutcome
    message: str
    path: str | None = None
