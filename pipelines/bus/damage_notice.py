"""Asks the driver of a run to read its recovery points, because another process has found damage.

The driver reads for itself and believes only what it reads, so a mistaken notice costs one reading.
Decides nothing about the point.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from pipelines.bus.inbox import submit
from pipelines.bus.lease import is_driven
from pipelines.domain.clock import Clock
from pipelines.domain.commands import VerifyPoints
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.ids import RequestId
from pipelines.domain.run import RunDirectory

AGAIN_AFTER_MS = 600_000
"""The same damage is reported again after so long at most, in case it was mended and came back."""

log = logging.getLogger("ftdash.damage")


def report_damage(
    run: RunDirectory, location: str, problem: str, *, found_by: str, wall_ms: int
) -> bool:
    """False: the driver has heard of it lately. The caller knows that the run is under way.

    Raises Retryable if the run's directory takes nothing.
    """
    command = VerifyPoints(
        request_id=_id_of(location, problem, wall_ms),
        requested_by=found_by,
        reason=f"{location}: {problem}",
    )
    try:
        return submit(run, command)
    except OSError as error:
        raise Retryable(f"The driver of {run.run_id} cannot be asked: {error}.") from error


@contextmanager
def reporting_damage(location: str, clock: Clock, *, found_by: str) -> Iterator[None]:
    """Reports damage that the block finds in the point, if the point lies in the directories of a
    run under way. A point elsewhere does not say where its run is."""
    try:
        yield
    except CorruptSnapshot as error:
        try:
            run = _run_of(location)
            if is_driven(run):
                problem = str(error)
                report_damage(run, location, problem, found_by=found_by, wall_ms=clock.wall_ms())
        except (Retryable, OSError) as away:
            log.warning("%s is damaged, and its driver cannot be asked: %s", location, away)
        raise


def _id_of(location: str, problem: str, wall_ms: int) -> RequestId:
    """The same for the same damage, so that the inbox refuses to deliver it twice."""
    said = f"{location}\n{problem}\n{wall_ms // AGAIN_AFTER_MS}".encode()
    return RequestId(f"verify-{blake2b(said, digest_size=12).hexdigest()}")


def _run_of(location: str) -> RunDirectory:
    """Where it is unless a setting says otherwise, see `RunDirectory`; it may not exist."""
    point = Path(location)
    home = point.parent.parent
    if point.parent.name == "checkpoints":
        return RunDirectory(home)
    run_id = point.name.removeprefix("savepoint-").rpartition("-")[0]
    return RunDirectory(home / "runs" / run_id)
