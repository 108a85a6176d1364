"""Whatever wrote a point, a person who looks into it or compares it sees the same rows."""

from pathlib import Path

import pytest

from pipelines.points.browsing import rows_page
from pipelines.points.comparison import Point, difference_of, keys_of, parts_of
from pipelines.points.contents import Place, RowsQuestion, contents
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.contracts.held_points import FLOW_NAME, KINDS, HeldPoint, hold

INCREMENTAL = [kind for kind in KINDS if kind.startswith("incremental")]
WHOLE = [kind for kind in KINDS if kind not in INCREMENTAL]
LIMIT = 7
SOURCES_AND_TARGETS = [(WHOLE[0], kind) for kind in WHOLE] + [tuple(INCREMENTAL)]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("first", "second"), SOURCES_AND_TARGETS)
def test_every_kind_of_point_shows_the_same_rows_page_by_page(
    tmp_path: Path, first: str, second: str
) -> None:
    store = FileSystemCheckpointStore([str(tmp_path)])

    shown = [
        rows_of(store, hold(store, str(tmp_path / str(i)), kind))
        for i, kind in enumerate((first, second))
    ]

    assert shown[0] == shown[1]
    assert len(shown[0]) >= 8  # states, including the second tables of lists and maps


@pytest.mark.parametrize(("first", "second"), SOURCES_AND_TARGETS)
def test_points_of_every_kind_with_equal_state_do_not_differ(
    tmp_path: Path, first: str, second: str
) -> None:
    store = FileSystemCheckpointStore([str(tmp_path)])
    left, right = (
        Point(held.location, held.manifest)
        for held in (hold(store, str(tmp_path / str(i)), k) for i, k in enumerate((first, second)))
    )
    keys = keys_of(FLOW_NAME, {})

    found = [difference_of(store, left, right, each, keys) for each in parts_of(left, right)]

    assert all(each.is_same for each in found)
    assert sum(bool(each.key) for each in found) >= 7 or first == second
    assert all(each.left_rows == each.right_rows > 0 for each in found)


def rows_of(
    store: FileSystemCheckpointStore, point: HeldPoint
) -> dict[tuple[str, str], list[tuple[str | None, ...]]]:
    """Returns all rows by operator and state, sorted by their texts."""
    states = [(each.uid, s.state, s.rows) for each in contents(point.manifest) for s in each.states]
    return {(uid, state): paged(store, point, uid, state, rows) for uid, state, rows in states}


def paged(
    store: FileSystemCheckpointStore, point: HeldPoint, uid: str, state: str, count: int
) -> list[tuple[str | None, ...]]:
    rows: list[tuple[str | None, ...]] = []
    place: Place | None = Place()
    while place is not None:
        question = RowsQuestion(uid, state, place, LIMIT)
        page = rows_page(store, point.location, point.manifest, question, lambda: False)
        assert len(page.rows) == LIMIT or page.next is None
        rows += [tuple(value.text for value in row) for row in page.rows]
        place = page.next
    assert len(rows) == count
    return sorted(rows, key=str)
