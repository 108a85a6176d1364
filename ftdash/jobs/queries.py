"""The only readers of the rows of jobs: pages, API and command line all ask here."""

from ftdash.jobs.answers import Fleet, PipelinePage, RecoveryAxis, RequestView


def fleet() -> Fleet:
    """Every pipeline in one line."""
    raise NotImplementedError


def pipeline_page(name: str) -> PipelinePage | None:
    """Everything but history about one pipeline; None if there is none of that name."""
    raise NotImplementedError


def recovery_axis(run_id: str, points_max: int = 500) -> RecoveryAxis | None:
    """Failures, recoveries and the newest `points_max` recovery points of one run."""
    raise NotImplementedError


def requests(pipeline: str | None = None, limit: int = 50) -> list[RequestView]:
    """The audit log, newest first."""
    raise NotImplementedError


def request(request_id: str) -> RequestView | None:
    raise NotImplementedError


def versions() -> dict[str, str]:
    """Of each pipeline by name, a token that changes whenever its pages would. Cheap."""
    raise NotImplementedError
