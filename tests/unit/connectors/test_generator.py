"""Generated rows depend on the seed alone, and come at the requested rate."""

import numpy as np
import pyarrow as pa
import pytest

from pipelines.connectors.in_process import Draws, SeededGenerator
from pipelines.connectors.watermark_strategy import EVENT_TIME
from pipelines.domain.errors import Rejected

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("at", EVENT_TIME)])


@pytest.mark.parametrize("offset", [0, 1, 99, 100, 250])
def test_reading_from_any_offset_yields_the_same_rows(offset: int) -> None:
    whole = rows(generator(batch_rows=100), 1, 0)

    assert rows(generator(batch_rows=7), 1, offset) == whole[offset:]


def test_seeds_splits_and_names_make_different_rows() -> None:
    several = [
        rows(generator(), 0, 0),
        rows(generator(), 1, 0),
        rows(generator(seed=2), 0, 0),
    ]

    assert len({str(each) for each in several}) == 3
    draws = Draws(1, 0, np.arange(100))
    assert not np.array_equal(draws.integers("a", 0, 1000), draws.integers("b", 0, 1000))


def test_numbers_are_spread_evenly_over_their_range() -> None:
    draws = Draws(5, 3, np.arange(100_000))

    counts = np.bincount(draws.integers("n", 10, 20))[10:]
    fractions = draws.fractions("x")

    assert len(counts) == 10
    assert counts.min() > 9_500
    assert counts.max() < 10_500
    assert 0 <= fractions.min() < 0.001
    assert 0.999 < fractions.max() < 1
    assert abs(fractions.mean() - 0.5) < 0.01


def test_numbers_do_not_change_with_a_new_version() -> None:
    draws = Draws(1, 0, np.arange(3))

    assert draws.integers("n", 0, 1000).tolist() == GOLDEN


def test_all_splits_share_the_row_rate() -> None:
    clock = [10.0]
    source = generator(rows_per_s=40.0, now_s=lambda: clock[0])
    batches = source.read(0, 5)

    assert next(batches).num_rows == 0
    clock[0] += 1.0
    assert next(batches).num_rows == 20
    assert next(batches).num_rows == 0
    clock[0] += 0.5
    assert next(batches).num_rows == 10


def test_event_time_of_a_position_is_that_of_its_row() -> None:
    source = generator()

    assert [source.event_time_ms(1, offset) for offset in (0, 7)] == [0, 7000]
    assert source.event_time_ms(1, 300) is None
    assert source.event_time_ms(9, 0) is None


def test_rows_that_do_not_fit_the_schema_are_refused_at_the_start() -> None:
    source = SeededGenerator(lambda draws: [pa.array(["x"])], schema=SCHEMA, seed=1)

    with pytest.raises(Rejected, match="do not fit its schema"):
        source.validate()


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(Rejected, match=r"0\.0 rows/s"):
        generator(rows_per_s=0.0)


GOLDEN = [629, 462, 859]


def generator(seed: int = 1, **options: object) -> SeededGenerator:
    return SeededGenerator(
        lambda draws: [
            pa.array(draws.integers("n", 0, 1_000_000)),
            pa.array(draws.fractions("x")),
            pa.array(draws.offsets * 1000, pa.int64()).cast(EVENT_TIME),
        ],
        **{
            "schema": SCHEMA,
            "seed": seed,
            "splits": 2,
            "rows_per_split": 300,
            "timestamp_column": "at",
            **options,
        },
    )


def rows(source: SeededGenerator, index: int, offset: int) -> list[dict[str, object]]:
    return [row for batch in source.read(index, offset) for row in batch.to_pylist()]
