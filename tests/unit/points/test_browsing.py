"""Paging through the rows of a state: each once, found by value, bounded, never executed."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.snapshots import Manifest
from pipelines.points import browsing
from pipelines.points.browsing import rows_page
from pipelines.points.contents import (
    Place,
    RowsPage,
    RowsQuestion,
    Value,
    Wanted,
    contents,
    texts_of,
    value_of,
)
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.points.stored_views import savepoint_of_views, write_events

KEYS, PARALLELISM = 50, 3


@pytest.fixture
def point(tmp_path: Path) -> Path:
    data = write_events(tmp_path / "data")
    return savepoint_of_views(tmp_path, data, keys=KEYS, parallelism=PARALLELISM)


def test_the_contents_of_a_point_are_listed_by_operator_and_state(point: Path) -> None:
    source, views = contents(manifest(point))

    assert (source.uid, source.is_source, source.records_read, source.states) == (
        "events",
        True,
        2,
        [],
    )
    (state,) = views.states
    assert (state.rows, state.subtasks, state.kind) == (KEYS, PARALLELISM, "table")
    assert state.bytes == sum(file.stat().st_size for file in point.glob("*.parquet"))
    assert "__key_group" in state.columns


@pytest.mark.parametrize("is_canonical", [True, False])
@pytest.mark.parametrize("limit", [1, 7, KEYS, 10 * KEYS])
def test_paging_shows_every_row_exactly_once(
    tmp_path: Path, is_canonical: bool, limit: int
) -> None:
    data = write_events(tmp_path / "data")
    point = savepoint_of_views(
        tmp_path, data, keys=KEYS, parallelism=PARALLELISM, is_canonical=is_canonical
    )

    pages = [asked(point, limit=limit)]
    while pages[-1].next is not None:
        pages.append(asked(point, limit=limit, begin=pages[-1].next))

    keys = [row[0].text for page in pages for row in page.rows]
    assert sorted(map(int, filter(None, keys))) == list(range(KEYS))
    assert all(len(page.rows) == limit for page in pages[:-1])
    assert [page.searched for page in pages] == sorted({page.searched for page in pages})
    assert pages[-1].searched == KEYS


def test_a_page_that_ran_out_of_time_says_where_to_continue(point: Path) -> None:
    pages = [asked(point, wanted="-1", is_time_up=True)]
    while pages[-1].next is not None:
        pages.append(asked(point, wanted="-1", begin=pages[-1].next, is_time_up=True))

    assert len(pages) == PARALLELISM
    assert not any(page.rows for page in pages)


def test_a_row_is_found_by_its_value(point: Path) -> None:
    key = column_of(point)

    (row,) = asked(point, wanted="33").rows

    assert row[0] == Value("33", 2)
    assert asked(point, wanted="51").rows == []
    assert asked(point, wanted="51").next is None
    with pytest.raises(Rejected, match=f"'many' is no value of the column '{key}', which is int64"):
        asked(point, wanted="many")


def test_search_results_are_paged_too(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data")
    point = savepoint_of_views(tmp_path, data, keys=600)
    everything = asked(point, limit=600).rows
    group = Counter(row[-1].text or "" for row in everything).most_common(1)[0][0]
    wanted = Wanted("__key_group", group)

    pages = [asked(point, limit=2, wanted=wanted)]
    while pages[-1].next is not None:
        pages.append(asked(point, limit=2, wanted=wanted, begin=pages[-1].next))

    assert len(pages) > 2
    assert [row for page in pages for row in page.rows] == [
        row for row in everything if row[-1].text == group
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"uid": "nobody"}, "no rows in a state .* of an operator 'nobody'"),
        ({"state": "nothing"}, "no rows in a state 'nothing'"),
        ({"wanted": Wanted("colour", "red")}, "no column 'colour'; it has"),
    ],
)
def test_an_unknown_operator_state_or_column_is_refused_by_name(
    point: Path, changes: dict[str, object], says: str
) -> None:
    (state,) = contents(manifest(point))[1].states
    given = {"uid": "views", "state": state.state, "begin": Place(), "limit": 5}

    with pytest.raises(Rejected, match=says):
        rows_page(
            store_of(point),
            str(point),
            manifest(point),
            RowsQuestion(**{**given, **changes}),  # type: ignore[arg-type]
            lambda: False,
        )


def test_a_part_too_large_for_a_page_is_refused_in_favour_of_spark(
    point: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "PART_BYTES_MAX", 100)

    with pytest.raises(Rejected, match=r"more than a page reads \(100\).*read_state"):
        asked(point)


def test_a_damaged_file_is_named(point: Path) -> None:
    damaged = sorted(point.glob("*.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")

    with pytest.raises(CorruptSnapshot, match=damaged.name):
        asked(point)


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array([b"\x00\xff", None]), ["00ff", None]),
        (pa.array(["<b>", None]), ["<b>", None]),
        (pa.array([True, None]), ["true", None]),
        (pa.array([0, None], pa.timestamp("ms", "UTC")), ["1970-01-01 00:00:00.000Z", None]),
        (pa.array([[1, 2], None]), ["[1, 2]", None]),
        (pa.array([1.5, None]), ["1.5", None]),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_values_are_written_according_to_their_type(
    array: pa.Array, texts: list[str | None]
) -> None:
    assert texts_of(array) == texts


def test_event_time_beyond_the_calendar_is_still_shown() -> None:
    (text,) = texts_of(pa.array([-(2**63)], pa.timestamp("ms")))

    assert text


def test_a_long_value_is_cut_and_shows_its_length() -> None:
    assert value_of("x" * 1000) == Value("x" * 200, 1000)


def asked(
    point: Path,
    *,
    limit: int = 100,
    begin: Place | None = None,
    wanted: str | Wanted | None = None,
    is_time_up: bool = False,
) -> RowsPage:
    (state,) = contents(manifest(point))[1].states
    question = RowsQuestion(
        "views",
        state.state,
        begin or Place(),
        limit,
        Wanted(column_of(point), wanted) if isinstance(wanted, str) else wanted,
    )
    return rows_page(store_of(point), str(point), manifest(point), question, lambda: is_time_up)


def column_of(point: Path) -> str:
    (state,) = contents(manifest(point))[1].states
    return next(iter(state.columns))


def manifest(point: Path) -> Manifest:
    return store_of(point).manifest(str(point))


def store_of(point: Path) -> FileSystemCheckpointStore:
    return FileSystemCheckpointStore([str(point.parent)])
