"""Quarantine files as splits of their source: only other runs' files, once, with a name prefix."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files.parquet import ParquetFiles
from pipelines.connectors.files.quarantine import ReplayedQuarantine
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.poison import REPLAYED_PREFIX

NUMBERS = Uid("numbers")
SCHEMA = pa.schema([("n", pa.int64())])
OWN = RunId("run-2")
OLD, OTHER = "part-run-1-00000003-0-0.jsonl", "part-run-1-00000004-1-0.jsonl"


def test_only_files_of_other_runs_are_found_and_records_come_back_unchanged(
    tmp_path: Path,
) -> None:
    put(tmp_path, OLD, [1, 2])
    put(tmp_path, OTHER, [3])
    put(tmp_path, f"part-{OWN}-00000009-0-0.jsonl", [4])  # failed again
    put(tmp_path, ".prepared-run-1-a1-00000004-0-1.jsonl", [5])
    put(tmp_path, "notes.jsonl", [6])
    source = replayed(tmp_path)

    found = source.find(set(), is_start=True)

    assert [split.name for split in found] == [REPLAYED_PREFIX + OLD, REPLAYED_PREFIX + OTHER]
    assert [numbers_of(source, split) for split in found] == [[1, 2], [3]]
    assert source.timestamp_column is None


@pytest.mark.parametrize("is_start", [True, False])
def test_a_known_file_is_not_found_again_and_none_if_looking_is_off(
    tmp_path: Path, is_start: bool
) -> None:
    put(tmp_path, OLD, [1])
    put(tmp_path, OTHER, [2])

    (found,) = replayed(tmp_path).find({REPLAYED_PREFIX + OLD}, is_start=is_start)

    assert found.name == REPLAYED_PREFIX + OTHER
    assert replayed(tmp_path, looks=False).find(set(), is_start=is_start) == []
    assert replayed(tmp_path / "none").find(set(), is_start=is_start) == []


def test_a_changed_quarantine_file_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, OLD, [1])
    source = replayed(tmp_path)
    (split,) = source.find(set(), is_start=True)
    put(tmp_path, OLD, [1, 2])

    with pytest.raises(Rejected, match=f"{OLD} has changed"):
        source.oldest(split)


def numbers_of(source: ReplayedQuarantine, split: SplitProgress) -> list[int]:
    assert source.oldest(split) == 0
    return [n for batch in source.open().read(split) for n in batch.column("n").to_pylist()]


def replayed(home: Path, *, looks: bool = True) -> ReplayedQuarantine:
    (home / "a.parquet").parent.mkdir(exist_ok=True)
    (home / "a.parquet").touch()
    source = ParquetFiles([home / "a.parquet"], schema=SCHEMA)
    return ReplayedQuarantine.of(home, NUMBERS, source, OWN, looks=looks)


def put(home: Path, name: str, numbers: list[int]) -> None:
    directory = home / NUMBERS
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"record": json.dumps({"n": number})}) + "\n" for number in numbers]
    (directory / name).write_text("".join(lines))
