"""The lab's input: the same views at any number of splits, each in its time; it notes each read."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.lab import page_views
from pipelines.lab.page_views import BEGAN, ViewInput, reads
from pipelines.lab.report import read_again

RECORDS = 2_500


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_the_views_are_the_same_for_any_number_of_splits(tmp_path: Path, splits: int) -> None:
    source = views_in(tmp_path, splits=splits)

    lines = [line for index in range(splits) for line in lines_of(source, index)]

    assert len(lines) == len(set(lines)) == RECORDS
    assert sorted(lines) == sorted(lines_of(views_in(tmp_path, splits=1), 0))


def test_another_seed_gives_another_input(tmp_path: Path) -> None:
    assert lines_of(views_in(tmp_path, seed=1), 0) != lines_of(views_in(tmp_path, seed=2), 0)


def test_at_a_given_rate_no_view_is_read_before_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = views_in(tmp_path, rate=1_000, splits=2)
    at(monkeypatch, 5_000)
    reading = source.read(0, 0)

    assert next(reading).num_rows == 0
    at(monkeypatch, 5_010)
    batch = next(reading)

    assert batch.num_rows == 5, "ten have happened, and every second one is in this split"
    assert batch.column("happened_ms").to_pylist() == [5_000, 5_002, 5_004, 5_006, 5_008]


def test_a_view_that_is_read_late_keeps_its_due_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, 5_000)
    next(views_in(tmp_path, rate=1_000).read(0, 0))

    at(monkeypatch, 9_000)
    late = next(views_in(tmp_path, rate=1_000).read(0, 100))

    assert (tmp_path / BEGAN).read_text() == "5000"
    assert late.column("happened_ms")[0].as_py() == 5_100
    assert late.num_rows == page_views.BATCH_ROWS


def test_every_read_is_recorded(tmp_path: Path) -> None:
    source = views_in(tmp_path, splits=2)
    lines_of(source, 0)
    next(source.read(0, 250))
    next(source.read(1, 0))

    noted = dict(reads(tmp_path))
    assert noted[0].tolist() == [[0, 1_000], [1_000, 1_250], [250, 1_250]]
    assert noted[1].tolist() == [[0, 1_000]]
    assert read_again(noted.items()) == 1_000


def test_a_split_ends_after_its_last_view(tmp_path: Path) -> None:
    source = views_in(tmp_path, splits=2)

    assert list(source.read(0, RECORDS // 2)) == []
    assert source.split_id(1) == "views-1"
    assert source.split_id(2) is None


def views_in(directory: Path, *, seed: int = 1, rate: int = 0, splits: int = 1) -> ViewInput:
    return ViewInput(directory, seed=seed, records=RECORDS, rate=rate, splits=splits)


def lines_of(source: ViewInput, index: int) -> list[str]:
    table = pa.Table.from_batches(source.read(index, 0), source.schema)
    return [str(line) for line in np.asarray(table.column("line"))]


def at(monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
    monkeypatch.setattr(page_views, "wall_ms", lambda: now_ms)
