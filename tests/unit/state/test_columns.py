"""Columns that are frozen without a copy: what a cut costs, and whom."""

import gc

import numpy as np
import pytest

from pipelines.state import columns
from pipelines.state.columns import ColumnsCut, ColumnStore

LENGTH = 32


@pytest.fixture(autouse=True)
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "SEGMENT_BITS", 3)
    monkeypatch.setattr(columns, "SEGMENT_ROWS", 8)
    monkeypatch.setattr(columns, "INITIAL_ROWS", LENGTH)


def test_a_write_saves_each_touched_segment_once_and_no_other() -> None:
    store = filled_store()
    cut = store.cut(LENGTH)

    for row in (1, 2, 20, 1):
        store.write(np.array([row]), {"n": np.array([-1])})

    assert sorted(cut._saved) == [0, 2]
    assert values_of(cut) == list(range(LENGTH))


def test_a_cut_without_later_writes_copies_nothing_until_it_is_read() -> None:
    store = filled_store()

    cut = store.cut(LENGTH)

    assert not cut._saved
    assert values_of(cut) == list(range(LENGTH))


def test_a_segment_that_was_read_is_not_saved_any_more() -> None:
    store = filled_store()
    cut = store.cut(LENGTH)
    segments = cut.segments()
    first = next(segments)

    store.write(np.array([0]), {"n": np.array([-1])})

    assert not cut._saved
    assert first["n"].tolist() == list(range(8))


def test_saved_segments_are_let_go_as_they_are_read() -> None:
    store = filled_store()
    cut = store.cut(LENGTH)
    store.write(np.arange(LENGTH), {"n": np.zeros(LENGTH)})
    segments = cut.segments()

    next(segments)

    assert len(cut._saved) == LENGTH // 8 - 1


def test_overlapping_cuts_each_keep_their_own_moment() -> None:
    store = filled_store()
    first = store.cut(LENGTH)
    store.write(np.array([5]), {"n": np.array([100])})
    second = store.cut(LENGTH)
    store.write(np.array([5]), {"n": np.array([200])})

    assert values_of(first)[5] == 5
    assert values_of(second)[5] == 100
    assert store["n"][5] == 200


def test_growth_leaves_the_cut_its_old_arrays_and_frees_the_writer() -> None:
    store = filled_store()
    cut = store.cut(LENGTH)

    store.ensure(LENGTH * 4)
    store.write(np.arange(LENGTH * 4), {"n": np.zeros(LENGTH * 4)})

    assert not cut._saved
    assert values_of(cut) == list(range(LENGTH))


def test_rows_beyond_the_cut_are_not_part_of_it() -> None:
    store = filled_store()
    cut = store.cut(11)

    store.write(np.array([11, 30]), {"n": np.array([-1, -1])})

    assert values_of(cut) == list(range(11))


def test_a_cut_that_nobody_will_read_costs_nothing() -> None:
    store = filled_store()
    cut = store.cut(LENGTH)
    del cut
    gc.collect()

    store.write(np.array([1]), {"n": np.array([-1])})

    assert store._cuts == []


def filled_store() -> ColumnStore:
    store = ColumnStore({"n": np.dtype(np.int64)})
    store.write(np.arange(LENGTH), {"n": np.arange(LENGTH)})
    return store


def values_of(cut: ColumnsCut) -> list[int]:
    return [value for segment in cut.segments() for value in segment["n"].tolist()]
