"""What a start would do to the output that is there: for the preflight and for who submits.

Asks the targets, which are as they were afterwards.
"""

from collections.abc import Iterator

from pipelines.connectors.sink import HoldsTarget
from pipelines.domain.errors import Rejected, Retryable
from pipelines.stream import Pipeline


def takeovers(pipeline: Pipeline, installation: str) -> Iterator[str]:
    """A sentence for each target that a run of another installation holds, or that does not say
    who holds it. Nothing of the runs of `installation` itself: that they follow each other goes
    without saying."""
    for uid, sink in pipeline.sinks.items():
        if not isinstance(sink, HoldsTarget):
            continue
        try:
            holder = sink.holder()
        except (Retryable, Rejected) as error:
            text = str(error).rstrip(".")
            yield f"Who holds the output of {uid!r} cannot be told now: {text}."
            continue
        if holder is not None and holder.installation not in ("", installation):
            yield (
                f"The output of {uid!r}, {sink.target}, is held by {holder.described.rstrip(',')}:"
                f" the new run takes it over, and run {holder.run_id} ends as FAILED if it still"
                " runs."
            )
