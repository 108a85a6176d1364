"""The only writers of what people ask for. Each stores a Request row; Celery delivers it.

Every function returns the request's id and raises Rejected with one sentence for the person.
"""

from pipelines.domain.ids import RequestId
from pipelines.domain.status import KillMoment


def submit_pipeline(
    *,
    name: str,
    flow: str,
    requester: str,
    reason: str = "",
    parallelism: int = 1,
    parameters: dict[str, str] | None = None,
    settings: dict[str, str] | None = None,
    master: str | None = None,
) -> RequestId:
    """Create or change the pipeline and start a run of it from the beginning."""
    raise NotImplementedError


def restore(
    *, pipeline: str, path: str, requester: str, reason: str, parallelism: int | None = None
) -> RequestId:
    """Start a new run from a recovery point, at another parallelism if given."""
    raise NotImplementedError


def request_checkpoint(*, pipeline: str, requester: str, reason: str) -> RequestId:
    raise NotImplementedError


def request_savepoint(*, pipeline: str, requester: str, reason: str) -> RequestId:
    raise NotImplementedError


def stop_with_savepoint(*, pipeline: str, requester: str, reason: str) -> RequestId:
    raise NotImplementedError


def cancel(*, pipeline: str, requester: str, reason: str) -> RequestId:
    raise NotImplementedError


def kill_slot(
    *,
    pipeline: str,
    slot: int,
    requester: str,
    reason: str,
    moment: KillMoment = KillMoment.NOW,
) -> RequestId:
    raise NotImplementedError
