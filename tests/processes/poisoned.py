"""A flow with functions that fail on some numbers: at the source, and behind an exchange.

The function behind the exchange counts the numbers of each key. It changes its count before it
fails, so that a half-changed state would show in the output for ever.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles
from pipelines.connectors.contract import MalformedRecord
from pipelines.connectors.files.quarantine import quarantined_records
from pipelines.domain.run import Parameter
from pipelines.operators.rows import Row
from pipelines.stream import (
    Environment,
    Flow,
    KeyedProcessFunction,
    Pipeline,
    RowContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from tests.processes.numbers import KEYS, POLL_S, SCHEMA, SPLIT_RECORDS, Numbers

COUNTED = pa.schema([("number", pa.int64()), ("key", pa.int64()), ("nth", pa.int64())])


@dataclass(frozen=True, slots=True)
class TornNumbers(Numbers):
    """Numbers, and some values that the source cannot read."""

    torn: frozenset[int] = frozenset()
    stays: bool = False  # the source does not end after the last number

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        yield from self._read(index, offset)
        while self.stays and index == (self.total - 1) // SPLIT_RECORDS:
            time.sleep(POLL_S)
            yield pa.RecordBatch.from_pylist([], schema=SCHEMA)

    def _read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        # Not super(), which does not work in a dataclass with slots.
        for batch in Numbers.read(self, index, offset):
            numbers = batch.column("number").to_pylist()
            row = next((row for row, number in enumerate(numbers) if number in self.torn), None)
            if row is None:
                yield batch
                continue
            if row:
                yield batch.slice(0, row)
            text = f"torn {numbers[row]}"
            at = numbers[row] - index * SPLIT_RECORDS
            raise MalformedRecord(f"It reads {text}.", row=row, offset=at, text=text.encode())


class CountUp(KeyedProcessFunction):
    """Numbers each record of a key, from 1 on."""

    def __init__(self, poison: set[int]) -> None:
        self._poison = poison

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        nth = (self._count.value() or 0) + 1
        self._count.update(nth)
        if row["number"] in self._poison:
            raise KeyError(f"{row['number']} cannot be counted")
        yield {"number": row["number"], "key": row["key"], "nth": nth}


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    at_source, behind = numbers_of(parameters["at_source"]), numbers_of(parameters["behind"])

    def digest(batch: pa.RecordBatch) -> pa.RecordBatch:
        bad = pc.is_in(batch.column("number"), pa.array(sorted(at_source), pa.int64()))
        if pc.any(bad).as_py():
            raise ValueError("a number cannot be digested")
        return batch

    env = Environment()
    torn = frozenset(numbers_of(parameters["torn"]))
    stays = parameters["stays"] == "true"
    source = TornNumbers(int(parameters["total"]), torn=torn, stays=stays)
    numbers = env.source(source, uid="numbers")
    if parameters["again"]:
        directory = Path(parameters["again"])
        again = quarantined_records(directory, schema=SCHEMA, timestamp_column="at")
        numbers = numbers.union(env.source(again, uid="again"), uid="both")
    digested = numbers.map_batches(digest, SCHEMA, uid="digest")
    counted = digested.key_by("key").process(CountUp(behind), COUNTED, uid="count")
    counted.sink(ExactlyOnceFiles(Path(parameters["output"]), pipeline="poisoned"), uid="files")
    return env.build()


def numbers_of(text: str) -> set[int]:
    return {int(number) for number in text.split()}


def assert_each_is_processed_or_quarantined(root: Path, total: int, poison: set[int]) -> None:
    """Asserts that each number is either processed or quarantined, once.

    No state contains anything of a number that failed.
    """
    processed = output_of(root)
    lines = quarantine_of(root)
    kept = [
        int(line["split"].removeprefix("numbers-")) * SPLIT_RECORDS + int(line["offset"])
        for line in lines
    ]
    assert sorted(kept) == sorted(poison)
    assert sorted(number for number, _, _ in processed) == sorted(set(range(total)) - poison)
    for key in range(KEYS):
        numbered = sorted(nth for _, of, nth in processed if of == key)
        assert numbered == list(range(1, len(numbered) + 1))
    for number, line in zip(kept, lines, strict=True):
        is_torn = line["operator"] == "numbers"
        said = line["record"] if is_torn else json.loads(line["record"])["number"]
        assert said == (f"torn {number}" if is_torn else number)


def output_of(root: Path) -> list[tuple[int, int, int]]:
    files = sorted(path for path in (root / "output").glob("part-*.parquet"))
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    return [(row["number"], row["key"], row["nth"]) for row in rows]


def quarantine_of(root: Path) -> list[dict[str, str]]:
    """Returns the lines that a reader of the quarantine sees."""
    files = sorted((root / "poisoned" / "quarantine" / "numbers").glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


FLOW = Flow(
    name="poisoned",
    summary="Numbers, some of which two functions fail on, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("total", "4000", "how many numbers there are"),
        Parameter("stays", "false", "true: the run does not end with the last number"),
        Parameter("again", "", "a quarantine whose records are read beside the numbers"),
        Parameter("torn", "", "numbers that cannot be read"),
        Parameter("at_source", "", "numbers that the function beside the source fails on"),
        Parameter("behind", "", "numbers that the function behind the exchange fails on"),
    ),
    assemble=assemble,
)
