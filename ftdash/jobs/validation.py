"""Refuses what cannot run, in one sentence, before anything is stored or started."""

import re
from pathlib import Path

from django.conf import settings as configuration

from ftdash.checkpoints.points import PointHead
from ftdash.jobs.models import Pipeline
from pipelines.domain.errors import Rejected
from pipelines.domain.places import scheme_of
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.settings import check_parallelism
from pipelines.storage.placement import check_placement, configured_roots
from pipelines.storage.roots import StorageRoots

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"The pipeline name {name!r} cannot be used; take up to 80 lower-case letters, digits,"
            " '-' and '_', and begin with a letter or digit."
        )


def check_reason(reason: str) -> str:
    """The reason without blanks around it."""
    if not reason.strip():
        raise Rejected("Say why in a few words; the reason is kept in the audit log.")
    return reason.strip()


def check_startable(
    flow: str,
    parallelism: int,
    max_parallelism: int,
    parameters: dict[str, str],
    settings: dict[str, str],
) -> None:
    """Raises Rejected naming the flow, parameter, column, setting or number that is wrong."""
    # The flows load Arrow, which takes longer than a page should; most requests start nothing.
    from pipelines.flows.registry import flow as registered_flow

    check_parallelism(parallelism, max_parallelism)
    check_placement(parse_settings(settings), _roots())
    registered_flow(flow).build(parameters)


def check_sources(flow: str, parameters: dict[str, str]) -> None:
    """Raises Rejected naming the file or column. Not for a restore: it may not read it all."""
    from pipelines.flows.registry import flow as registered_flow

    for source in registered_flow(flow).build(parameters).sources.values():
        source.validate()


def check_place(path: str, pipeline: Pipeline) -> None:
    """Raises Rejected when `path`, normalized, is neither below the pipeline's own directory nor
    in another root of the installation's storage."""
    jobs_root, *others = _roots()
    home = Path(jobs_root) / pipeline.name
    if scheme_of(path) == "" and Path(path).is_relative_to(home):
        return
    try:
        StorageRoots(others).check(path)
    except Rejected as refusal:
        raise Rejected(
            f"{path} is not a recovery point of {pipeline.name!r}; those lie below {home}"
            f"{' or '.join(['', *others])}."
        ) from refusal


def check_point(head: PointHead, path: str, pipeline: Pipeline) -> None:
    """Raises Rejected when the point is another flow's or was cut into other key groups."""
    if head.pipeline != pipeline.flow:
        raise Rejected(
            f"{path} is a point of the pipeline {head.pipeline!r}; it cannot be restored into"
            f" {pipeline.name!r}, which runs {pipeline.flow!r}."
        )
    if head.max_parallelism != pipeline.max_parallelism:
        raise Rejected(
            f"{path} was written with the maximum parallelism {head.max_parallelism}, and"
            f" {pipeline.name!r} has {pipeline.max_parallelism}; they must be equal."
        )


def _roots() -> list[str]:
    return configured_roots(Path(configuration.JOBS_ROOT))


def check_slot(slot: int, parallelism: int) -> None:
    if not 0 <= slot < parallelism:
        raise Rejected(f"There is no slot {slot}; choose 0 to {parallelism - 1}.")
