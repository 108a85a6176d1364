"""In-process rows as a source: a position means the same row in every process."""

import pyarrow as pa
import pytest

from pipelines.connectors.in_process import ArrowRows
from pipelines.connectors.watermark_strategy import EVENT_TIME
from pipelines.domain.errors import Rejected

ROWS = 11
TABLE = pa.table({"id": range(ROWS), "at": pa.array(range(ROWS), EVENT_TIME)})
CHUNKED = pa.concat_tables([TABLE.slice(0, 4), TABLE.slice(4)])


@pytest.mark.parametrize("table", [TABLE, CHUNKED])
@pytest.mark.parametrize("splits", [1, 2, 3, 20])
def test_the_splits_hold_every_row_once_in_order(table: pa.Table, splits: int) -> None:
    source = ArrowRows(table, "at", splits=splits, batch_rows=2)

    names = [source.split_id(index) for index in range(splits)]
    assert len(set(names)) == splits
    assert source.split_id(splits) is None
    assert [row for index in range(splits) for row in ids(source, index, 0)] == list(range(ROWS))


@pytest.mark.parametrize("splits", [1, 2, 3, 20])
def test_an_offset_yields_the_rest_of_the_split_and_its_event_times(splits: int) -> None:
    source = ArrowRows(CHUNKED, "at", splits=splits, batch_rows=2)

    for index in range(splits):
        whole = ids(source, index, 0)
        for offset in range(len(whole) + 1):
            assert ids(source, index, offset) == whole[offset:]
        times = [source.event_time_ms(index, offset) for offset in range(len(whole) + 1)]
        assert times == [*whole, None]
    assert source.event_time_ms(1_000, 0) is None


def test_batches_are_filled_up_to_the_maximum_number_of_rows() -> None:
    batches = list(ArrowRows(CHUNKED, batch_rows=3).read(0, 0))

    assert [batch.num_rows for batch in batches] == [3, 3, 3, 2]


def test_impossible_splits_or_event_time_columns_are_refused() -> None:
    with pytest.raises(Rejected, match="at least one split and one row"):
        ArrowRows(TABLE, splits=0)
    with pytest.raises(Rejected, match="The event time column id must be"):
        ArrowRows(TABLE, "id")


def ids(source: ArrowRows, index: int, offset: int) -> list[int]:
    return [n for batch in source.read(index, offset) for n in batch["id"].to_pylist()]
