"""The only readers of the rows of metrics."""

from ftdash.metrics.answers import SamplePoint


def samples(run_id: str, limit: int = 600) -> list[SamplePoint]:
    """The newest `limit` samples of a run, oldest first."""
    raise NotImplementedError
