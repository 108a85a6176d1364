"""Says what a start would do to the existing output, for the preflight and at a submission.

Asks the targets and leaves them as they are.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.connectors.sink import HoldsTarget
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.output_figures import published_again
from pipelines.domain.run import RunDirectory
from pipelines.domain.snapshots import Manifest
from pipelines.runtime.master.output.published_output import Start, published_up_to, repeats
from pipelines.stream import Pipeline


def takeovers(pipeline: Pipeline, installation: str) -> Iterator[str]:
    """A sentence for each target that a run of another installation holds, or that cannot say which
    run holds it. Runs of `installation` itself follow each other without a sentence."""
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


def repeated(pipeline: Pipeline, newest_run: str, manifest: Manifest | None) -> Iterator[str]:
    """A sentence for each target that shows its readers records that they have already seen.

    `newest_run`: the directory of the newest run of the pipeline; empty: there is none. `manifest`
    None: the new run starts from nothing.
    """
    if not newest_run:
        return
    run = RunDirectory(Path(newest_run))
    start = Start() if manifest is None else Start.at(manifest)
    published = published_up_to(run)
    for each in repeats(run, pipeline.sinks, start, lambda uid: published):
        yield published_again(each.sink, each.target, each.records, is_at_most=each.is_at_most)
