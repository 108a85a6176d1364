"""Reading a point in steps: every byte once, damage named, nothing touched."""

from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected
from pipelines.points.comparison import Inspected, inspect
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.points.stored_views import savepoint_of_views, write_events

PARALLELISM = 5


@pytest.fixture
def point(tmp_path: Path) -> Path:
    data = write_events(tmp_path / "data")
    return savepoint_of_views(tmp_path, data, keys=200, parallelism=PARALLELISM)


def test_the_steps_read_every_file_once(point: Path) -> None:
    steps = [step(point, 0)]
    while not steps[-1].is_over:
        steps.append(step(point, steps[-1].files_read))

    assert [each.files_read for each in steps] == list(range(1, PARALLELISM + 1))
    assert steps[-1].bytes_read == steps[-1].bytes == sum(sizes(point))
    assert not any(each.problem for each in steps)


def test_one_step_with_enough_time_reads_every_file(point: Path) -> None:
    found = inspect(str(point), store_of(point), 0, lambda: False)

    assert found.is_over
    assert found.files_read == found.files == PARALLELISM


def test_a_repeated_step_gives_the_same_result(point: Path) -> None:
    assert step(point, 2) == step(point, 2)
    assert step(point, PARALLELISM) == step(point, PARALLELISM + 9)
    assert step(point, PARALLELISM).is_over


def test_damage_ends_the_inspection_and_names_the_file(point: Path) -> None:
    damaged = sorted(point.glob("*.parquet"))[2]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    found = inspect(str(point), store_of(point), 0, lambda: False)

    assert found.is_over
    assert found.problem == f"{damaged} was altered: its digest does not match."
    assert found.files_read == 2


def test_the_inspection_of_a_point_without_a_manifest_ends_at_once(point: Path) -> None:
    (point / "manifest.json").unlink()

    found = step(point, 0)

    assert found.is_over
    assert "manifest.json is missing" in found.problem


def test_nothing_outside_the_storage_is_read(point: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()

    with pytest.raises(Rejected, match="outside the configured storage"):
        inspect(str(point), FileSystemCheckpointStore([str(inside)]), 0, lambda: True)


def step(point: Path, files_read: int) -> Inspected:
    return inspect(str(point), store_of(point), files_read, lambda: True)


def store_of(point: Path) -> FileSystemCheckpointStore:
    return FileSystemCheckpointStore([str(point.parent)])


def sizes(point: Path) -> list[int]:
    return [file.stat().st_size for file in point.glob("*.parquet")]
