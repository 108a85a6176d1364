"""The contents of a recovery point: its operators, the rows of a state, and its shelf life.

A page of rows is read within seconds or not at all; see `pipelines.points.browsing`. Arrow is
loaded only when a person looks into a point.
"""

import time
from dataclasses import dataclass

from ftdash.checkpoints.answers import Savepoint
from ftdash.checkpoints.found_damage import passing_on_damage
from ftdash.jobs.models import Run
from ftdash.jobs.validation import check_place, roots
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.points.descriptions import (
    OperatorInside,
    Place,
    RowsPage,
    RowsQuestion,
    ShelfLife,
    Wanted,
)

ROWS_PER_PAGE = 50
PAGE_S = 2.0
"""A page searches for rows no longer than this, and then says how far it got."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Which state and rows a person looks at, and from which place on."""

    uid: str
    state: str
    column: str = ""  # empty: all rows
    value: str = ""
    part: int = 0
    row: int = 0


def operators_in(path: str) -> list[OperatorInside]:
    """Raises Rejected if the point cannot be read, or is outside the storage."""
    from pipelines.points.contents import contents
    from pipelines.storage.stores import CheckpointStores

    check_place(path)
    store = CheckpointStores(roots(), max_memory_state_bytes=0)
    try:
        with passing_on_damage(path):
            return contents(store.manifest(path))
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{path} cannot be read: {error}") from error


def rows_in(path: str, looked: Looked) -> RowsPage:
    """Raises Rejected if there is no such state, column or value, or if it cannot be read."""
    from pipelines.points.browsing import rows_page
    from pipelines.storage.stores import CheckpointStores

    check_place(path)
    store = CheckpointStores(roots(), max_memory_state_bytes=0)
    until_s = time.monotonic() + PAGE_S
    wanted = Wanted(looked.column, looked.value) if looked.column and looked.value else None
    begin = Place(looked.part, looked.row)
    question = RowsQuestion(looked.uid, looked.state, begin, ROWS_PER_PAGE, wanted)
    try:
        with passing_on_damage(path):
            manifest = store.manifest(path)
            return rows_page(store, path, manifest, question, lambda: time.monotonic() >= until_s)
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{path} cannot be read: {error}") from error


def shelf_life_of(point: Savepoint) -> ShelfLife:
    """For the pipeline and parameters that wrote it; asks the sources, which takes a moment.

    Raises Rejected if the point cannot be read, or its pipeline can no longer be built.
    """
    from pipelines.points.shelf_life import shelf_life
    from pipelines.storage.stores import CheckpointStores

    check_place(point.path)
    run = Run.objects.filter(run_id=point.run_id).first()
    try:
        with passing_on_damage(point.path):
            manifest = CheckpointStores(roots(), max_memory_state_bytes=0).manifest(point.path)
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{point.path} cannot be read: {error}") from error
    return shelf_life(
        manifest,
        manifest.pipeline,
        run.parameters if run else {},
        is_committed=point.committed_at is not None,
    )
