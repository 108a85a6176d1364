"""Every record of a screened split is handed on or quarantined, and the position passes both."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from pipelines.connectors.contract import Batch, LoggedRecords, MalformedRecord
from pipelines.connectors.json_rows import record_text
from pipelines.domain.ids import Uid
from pipelines.domain.poison import IsolatedRange, Isolation, PoisonRecord
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.split_screen import SplitScreen
from tests.unit.runtime.fakes import SCHEMA, ListSource, ManualClock, batch_of, keys_of

IN = Uid("in")


@dataclass(slots=True)
class KeptRows:
    """Implements `Kept`."""

    rows: list[tuple[int, int]] = field(default_factory=list)  # offset and key

    def add_row(self, poison: PoisonRecord, row: pa.RecordBatch) -> None:
        (key,) = keys_of(row)
        self.rows.append((poison.offset, key))

    def add_text(self, poison: PoisonRecord, text: str) -> None:
        self.rows.append((poison.offset, int(text)))


@dataclass(slots=True)
class TornSource(ListSource):
    """A source that cannot read some of its records."""

    torn: frozenset[int] = frozenset()

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        at = offset
        for batch in ListSource.read(self, index, offset):
            bad = next((n for n in range(at, at + batch.num_rows) if n in self.torn), None)
            if bad is None:
                yield batch
                at += batch.num_rows
                continue
            if bad > at:
                yield batch.slice(0, bad - at)
            text = str(self.splits[index][bad][0]).encode()
            raise MalformedRecord(f"{bad} is torn.", row=bad - at, offset=bad, text=text)


def poison(offset: int, *, source: str = "in", split: str = "split-0") -> PoisonRecord:
    return PoisonRecord(
        source=Uid(source),
        split=split,
        offset=offset,
        operator=Uid("f"),
        error_type="builtins.ValueError",
        error="bad",
        trace="",
    )


def isolated(first: int, last: int, step: int) -> IsolatedRange:
    return IsolatedRange(
        source=IN, split="split-0", first_offset=first, last_offset=last, step=step
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_reader_skips_only_poison_records_and_its_position_passes_them(seed: int) -> None:
    rng = random.Random(seed)
    total, rows = rng.randint(1, 60), rng.randint(1, 20)
    bad = rng.sample(range(total), rng.randint(1, min(total, 5)))
    torn = frozenset(bad[::2])
    source = TornSource([[(10 * n, n) for n in range(total)]], batch_rows=rows, torn=torn)
    first = rng.randrange(total)
    ranges = [isolated(first, rng.randrange(first, total), rng.randint(1, 5))]
    isolation = Isolation(poison=[poison(n) for n in bad], ranges=ranges)

    read: list[int] = []
    held = KeptRows()
    reader = reader_of(source, isolation, held)
    for _ in range(4 * total):
        batch = reader.next()
        read += [] if batch is None else keys_of(batch)
        if rng.random() < 0.5:  # a recovery: nothing but the position is kept
            reader = reader_of(source, isolation, held, (reader.positions(),))

    assert read == [10 * n for n in range(total) if n not in bad]
    assert held.rows == [(n, 10 * n) for n in sorted(bad)]


def test_batches_are_cut_at_the_borders_of_every_part() -> None:
    source = ListSource([[(n, n) for n in range(20)]], batch_rows=8)
    reader = reader_of(source, Isolation(ranges=[isolated(4, 12, 3)]), KeptRows())

    seen = [(keys_of(batch), origin(reader)) for batch in batches_of(reader)]

    assert seen == [
        ([0, 1, 2, 3], (0, 4)),
        ([4, 5, 6], (4, 7)),
        ([7], (7, 8)),
        ([8, 9], (8, 10)),
        ([10, 11, 12], (10, 13)),
        ([13, 14, 15], (13, 16)),
        ([16, 17, 18, 19], (16, 20)),
    ]


def test_in_a_log_with_gaps_a_part_ends_behind_its_last_record() -> None:
    """Otherwise the record would be in work together with offsets that have no record."""
    held = KeptRows()
    screen = SplitScreen(
        IN, SCHEMA, Isolation(poison=[poison(7)], ranges=[isolated(3, 9, 1)]), held
    )
    logged = LoggedRecords(batch_of([(3, 0), (7, 0), (9, 0)]), np.array([3, 7, 9]), 20)
    taken_out: list[bool] = []

    given = list(
        screen.read("split-0", 0, lambda _: iter([logged]), lambda: taken_out.append(True))
    )

    assert [described(each) for each in given] == [
        ([3], [3], None),
        ([], [], 8),
        ([9], [9], None),
        ([], [], 20),
    ]
    assert held.rows == [(7, 7)]
    assert taken_out == [True]


def test_an_unreadable_record_that_is_not_isolated_still_fails() -> None:
    source = TornSource([[(n, n) for n in range(6)]], torn=frozenset({4}))
    reader = reader_of(source, Isolation(poison=[poison(1)]), KeptRows())

    with pytest.raises(MalformedRecord, match="4 is torn"):
        list(batches_of(reader))


def test_a_split_without_suspects_is_read_unchanged() -> None:
    isolation = Isolation(poison=[poison(1, split="split-1"), poison(1, source="other")])
    screen = SplitScreen(IN, SCHEMA, isolation, KeptRows())
    batches: list[Batch] = [batch_of([(0, 0), (1, 1)])]
    given: Iterator[Batch] = iter(batches)

    assert screen.read("split-0", 0, lambda _: given, lambda: None) is given


def test_a_row_is_stored_as_json_even_with_types_unknown_to_json() -> None:
    schema = pa.schema(
        [("n", pa.int64()), ("text", pa.string()), ("tags", pa.map_(pa.string(), pa.int64()))]
    )
    row = pa.RecordBatch.from_pylist([{"n": 1, "text": "a\n<b>", "tags": [("x", 2)]}], schema)

    assert json.loads(record_text(row)) == {"n": 1, "text": "a\n<b>", "tags": "[('x', 2)]"}


def reader_of(
    source: ListSource, isolation: Isolation, kept: KeptRows, restored: tuple[object, ...] = ()
) -> DirectReader:
    screen = SplitScreen(IN, SCHEMA, isolation, kept)
    return DirectReader(
        source=source,
        restored=restored,
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
        screen=screen,
    )


def batches_of(reader: DirectReader) -> Iterator[pa.RecordBatch]:
    while not reader.is_exhausted:
        batch = reader.next()
        if batch is not None:
            yield batch


def origin(reader: DirectReader) -> tuple[int, int] | None:
    split = reader.split
    return None if split is None else (split.first_offset, split.next_offset)


def described(batch: Batch) -> tuple[list[int], list[int], int | None]:
    assert isinstance(batch, LoggedRecords)
    return keys_of(batch.records), batch.offsets.tolist(), batch.end
