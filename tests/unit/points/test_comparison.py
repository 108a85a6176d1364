"""Differences between two points: counted exactly, at any parallelism, in bounded memory."""

from functools import reduce
from pathlib import Path

import pytest

from pipelines.domain.errors import CorruptSnapshot
from pipelines.domain.ids import CheckpointId
from pipelines.points import comparison
from pipelines.points.comparison import Point, difference_of, keys_of, parts_of
from pipelines.points.contents import EXAMPLES_MAX, StateDifference
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.points.stored_views import FLOW, publish_views, write_events


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_events(tmp_path / "data")


@pytest.mark.parametrize("rows_in_a_part", [7, 1000])
@pytest.mark.parametrize("is_canonical", [True, False])
@pytest.mark.parametrize(("twice", "changed"), [(False, 0), (True, 39)])
def test_counts_new_gone_and_changed_keys_exactly_at_different_parallelisms(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows_in_a_part: int,
    is_canonical: bool,
    twice: bool,
    changed: int,
) -> None:
    monkeypatch.setattr(comparison, "PART_ROWS", rows_in_a_part)
    left = point(data, 1, keys=40, parallelism=2, is_canonical=is_canonical)
    right = point(data, 2, keys=60, parallelism=3, twice=twice)

    forth, back = compared(data, left, right), compared(data, right, left)

    assert (forth.left_rows, forth.right_rows) == (40, 60)
    assert (forth.added, forth.removed, forth.changed) == (20, 0, changed)
    assert (back.added, back.removed, back.changed) == (0, 20, changed)
    assert forth.key
    new = sorted(int(row[0].text or "") for row in forth.added_rows)
    assert set(new) <= set(range(40, 60))
    assert len(new) == EXAMPLES_MAX


def test_a_changed_value_is_shown_before_and_after(data: Path) -> None:
    left = point(data, 1, keys=40)
    right = point(data, 2, keys=40, twice=True)

    found = compared(data, left, right)

    assert (found.added, found.removed, found.changed) == (0, 0, 39)  # application 0 has no views
    row = found.changed_rows[0]
    assert row.left[0] == row.right[0]
    counted = found.columns.index("views") if "views" in found.columns else -1
    assert int(row.right[counted].text or "") == 2 * int(row.left[counted].text or "")


def test_without_a_buildable_pipeline_rows_are_compared_as_a_whole(data: Path) -> None:
    left, right = point(data, 1, keys=40), point(data, 2, keys=40, twice=True)

    found = compared(data, left, right, flow="no_such_flow")

    assert (found.key, found.changed) == ([], None)
    assert (found.added, found.removed) == (39, 39)


def test_a_state_in_only_one_point_is_entirely_new_or_gone(data: Path) -> None:
    left, right = point(data, 1, keys=0), point(data, 2, keys=5)

    assert (compared(data, left, right).added, compared(data, right, left).removed) == (5, 5)


def test_files_that_both_points_share_are_not_read(data: Path) -> None:
    left = point(data, 1, keys=40)
    for file in Path(left.location).glob("*.parquet"):
        file.unlink()

    found = compared(data, left, left)

    assert found.is_same
    assert found.note == "Both points refer to the same files."


@pytest.mark.parametrize("bound", ["STATE_BYTES_MAX", "PART_BYTES_MAX"])
def test_a_state_too_large_to_compare_is_reported_with_its_row_counts(
    data: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(comparison, bound, 10)

    found = compared(data, point(data, 1, keys=40), point(data, 2, keys=60))

    assert "too large to be compared here (more than 10 bytes in" in found.problem
    assert not found.is_same
    assert (found.left_rows, found.right_rows, found.added) == (40, 60, 0)


def test_points_with_different_max_parallelism_are_compared_in_one_part(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "PART_ROWS", 7)
    left = point(data, 1, keys=40, max_parallelism=64)

    assert [part.groups for part in parts_of(left, point(data, 2, keys=60))] == [None]


def test_damage_is_named(data: Path) -> None:
    left, right = point(data, 1, keys=40), point(data, 2, keys=60)
    damaged = sorted(Path(right.location).glob("*.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")

    with pytest.raises(CorruptSnapshot, match=damaged.name):
        compared(data, left, right)


def compared(data: Path, left: Point, right: Point, flow: str = FLOW) -> StateDifference:
    keys, store = keys_of(flow, {"data": str(data)}), store_at(data)
    parts = parts_of(left, right)
    found = [difference_of(store, left, right, part, keys) for part in parts]
    return reduce(StateDifference.plus, found)


def point(data: Path, number: int, **changes: object) -> Point:
    location = str(data.parent / f"savepoint-{number}")
    named = {"checkpoint_id": CheckpointId(number)}
    publish_views(store_at(data), location, data, **{**named, **changes})  # type: ignore[arg-type]
    return Point(location, store_at(data).manifest(location))


def store_at(data: Path) -> FileSystemCheckpointStore:
    return FileSystemCheckpointStore([str(data.parent)])
