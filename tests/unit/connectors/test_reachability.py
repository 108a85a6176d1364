"""A stored position is checked against files that vanished, moved up or changed."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.connectors.files.csv import CsvFiles
from pipelines.connectors.files.input_files import write_listing
from pipelines.connectors.files.parquet import ParquetFiles
from pipelines.connectors.positions import SplitMemory, problems_of
from pipelines.connectors.source import Source, VersionedSplits
from pipelines.connectors.split_progress import SplitPositions, initial, redistribute
from pipelines.domain.ids import Uid

SCHEMA = pa.schema([("id", pa.int64())])
UID = Uid("flights")
NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture(params=["parquet", "csv"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        write(tmp_path / f"{name}.{request.param}", first=10 * number)
    return tmp_path


def test_an_unchanged_source_can_be_rewound(directory: Path) -> None:
    position = read_until(directory, split=2, offset=3)

    assert problems_of(UID, source_in(directory), [position], ahead=True) == []


@pytest.mark.parametrize("vanished", ["a", "b"])
def test_a_vanished_file_moves_the_others_up_and_is_noticed_by_name(
    directory: Path, vanished: str
) -> None:
    position = read_until(directory, split=2, offset=3)
    file_of(directory, vanished).unlink()

    [problem] = problems_of(UID, source_in(directory), [position], ahead=True)

    assert f"'{file_of(directory, 'c').name}'" in problem
    assert f"'{file_of(directory, 'd').name}'" in problem


def test_a_file_added_before_the_read_ones_is_noticed(directory: Path) -> None:
    position = read_until(directory, split=2, offset=3)
    write(file_of(directory, "a").with_stem("aa"), first=0)

    [problem] = problems_of(UID, source_in(directory), [position], ahead=True)

    assert "were added before it" in problem


def test_a_file_that_vanished_after_everything_was_read_is_noticed(directory: Path) -> None:
    position = read_until(directory, split=len(NAMES), offset=0)
    file_of(directory, "b").unlink()

    [problem] = problems_of(UID, source_in(directory), [position], ahead=True)

    assert "is not there any more" in problem


@pytest.mark.parametrize("records", [4, 5, 6])
def test_a_file_that_was_replaced_while_it_was_read_is_refused_by_name(
    directory: Path, records: int
) -> None:
    position = read_until(directory, split=2, offset=3)
    write(file_of(directory, "c"), first=70, records=records)

    [problem] = problems_of(UID, source_in(directory), [position], ahead=True)

    assert f"'{file_of(directory, 'c').name}' has changed since it was read" in problem


def test_a_restored_split_keeps_the_version_that_was_begun(directory: Path) -> None:
    """A replacement must not pass for the original because a restored subtask opened it."""
    position = read_until(directory, split=2, offset=3)
    write(file_of(directory, "c"), first=70)
    source = source_in(directory)

    restored = SplitMemory(source, [position])
    restored.on_opened(2, 3)

    assert problems_of(UID, source, [restored.beside(position)], ahead=True) != []


def test_a_file_that_is_not_yet_begun_may_still_be_replaced(directory: Path) -> None:
    position = read_until(directory, split=2, offset=0)
    write(file_of(directory, "c"), first=70, records=9)

    assert problems_of(UID, source_in(directory), [position], ahead=True) == []


def test_a_fully_read_file_may_vanish_if_a_listing_keeps_its_place(
    directory: Path,
) -> None:
    write_listing(directory)
    position = read_until(directory, split=2, offset=3)
    file_of(directory, "a").unlink()

    assert problems_of(UID, source_in(directory), [position], ahead=True) == []


def test_a_missing_listed_file_that_is_still_to_be_read_is_named(directory: Path) -> None:
    write_listing(directory)
    position = read_until(directory, split=2, offset=3)
    file_of(directory, "e").unlink()

    [problem] = problems_of(UID, source_in(directory), [position], ahead=True)

    assert file_of(directory, "e").name in problem
    assert problems_of(UID, source_in(directory), [position], ahead=False) == []


@pytest.mark.parametrize("seed", range(60))
def test_no_vanished_file_goes_unnoticed_at_any_parallelism(seed: int, tmp_path: Path) -> None:
    """Rescaling deals the splits again, but one subtask always remembers the last split opened."""
    rng = random.Random(seed)
    for number, name in enumerate(NAMES):
        write(tmp_path / f"{name}.parquet", first=10 * number)
    source = source_in(tmp_path)
    positions = stored([initial(i, p) for p in [rng.randint(1, 3)] for i in range(p)], source)
    for _ in range(rng.randint(1, 3)):
        positions = [read_some(rng, source, position, positions) for position in positions]
        parallelism = rng.randint(1, 3)
        old = positions
        positions = [redistribute(old, subtask, parallelism) for subtask in range(parallelism)]
        positions = stored(positions, source, old)
    opened = max((split.index for position in positions for split in position.seen), default=-1)

    healthy = problems_of(UID, source, positions, ahead=True)
    if opened > 0:
        (tmp_path / f"{NAMES[rng.randrange(opened)]}.parquet").unlink()

    assert healthy == []
    assert bool(problems_of(UID, source_in(tmp_path), positions, ahead=True)) == (opened > 0)


def test_a_source_without_versions_is_checked_by_names() -> None:
    position = SplitPositions.from_json(
        {"backlog": [[0, 4]], "frontier": 1, "stride": 1, "seen": [{"index": 0, "name": "gone"}]}
    )

    [problem] = problems_of(UID, Nameless(), [position], ahead=True)

    assert "'gone'" in problem


def test_a_position_of_an_older_release_without_memory_is_accepted(directory: Path) -> None:
    position = SplitPositions.from_json({"backlog": [[2, 3]], "frontier": 3, "stride": 1})

    assert problems_of(UID, source_in(directory), [position], ahead=True) == []


def test_file_sources_have_versioned_splits(directory: Path) -> None:
    assert isinstance(source_in(directory), VersionedSplits)


class Nameless:
    """A source with one split that cannot tell whether the split has changed."""

    schema = SCHEMA
    timestamp_column = None
    out_of_orderness_ms = 0

    def split_id(self, index: int) -> str | None:
        return "only" if index == 0 else None


def write(path: Path, *, first: int, records: int = 5) -> None:
    table = pa.table({"id": pa.array(range(first, first + records), pa.int64())})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        path.write_text("".join(f"{value}\n" for value in table.column("id").to_pylist()))


def file_of(directory: Path, name: str) -> Path:
    suffix = next(p for p in directory.iterdir() if p.suffix in (".parquet", ".csv")).suffix
    return directory / f"{name}{suffix}"


def source_in(directory: Path) -> Source:
    if any(directory.glob("*.csv")):
        return CsvFiles(directory, schema=SCHEMA)
    return ParquetFiles(directory, schema=SCHEMA)


def read_until(directory: Path, *, split: int, offset: int) -> SplitPositions:
    """Returns the position after reading all splits before `split`, and `offset` records of it."""
    source = source_in(directory)
    memory, position = SplitMemory(source, []), initial(0, 1)
    for index in range(min(split + 1, len(NAMES))):
        memory.on_opened(index, 0)
        if index < split:
            position = position.advanced(5).finished(lambda _: True)
    stored_position = memory.beside(position.advanced(offset) if offset else position)
    return SplitPositions.from_json(stored_position.to_json())


def stored(
    positions: list[SplitPositions], source: Source, old: list[SplitPositions] | None = None
) -> list[SplitPositions]:
    return [SplitMemory(source, old or []).beside(position) for position in positions]


def read_some(
    rng: random.Random, source: Source, position: SplitPositions, all_old: list[SplitPositions]
) -> SplitPositions:
    memory = SplitMemory(source, all_old)
    for _ in range(rng.randint(0, 2)):
        index, offset = position.current()
        if source.split_id(index) is None:
            break
        memory.on_opened(index, offset)
        position = position.advanced(2)
        if rng.random() < 0.7:
            position = position.finished(lambda i: source.split_id(i) is not None)
    return memory.beside(position)
