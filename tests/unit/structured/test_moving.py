"""Where a pipeline begins after a batch of a query, and what cannot be moved."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors import json_lines_directory
from pipelines.domain.errors import Rejected
from pipelines.storage.trees import LocalTree
from pipelines.structured.directory import read_tree
from pipelines.structured.formats import SourceKind
from pipelines.structured.moving import Move, move_behind
from tests.structured_directories import Traits, write_query


def moved(home: Path, batch_id: int = 7, **traits: object) -> Move:
    made = write_query(home, Traits(**traits))  # type: ignore[arg-type]
    tree = LocalTree(made.checkpoint)
    return move_behind(tree, read_tree(tree), batch_id)


def test_kafka_begins_at_the_offsets_of_the_batch(tmp_path: Path) -> None:
    found = moved(tmp_path, sources=("kafka",), operator="none", has_watermark=False)

    (start,) = found.sources
    assert start.kind is SourceKind.KAFKA
    assert start.start_offsets == {"rides-0": 700, "rides-1": 630, "fares-0": 70}
    assert found.left_behind == ()


@pytest.mark.parametrize("compact_every", [2, 3, 10])
def test_files_that_were_read_up_to_the_batch_are_left_out(
    tmp_path: Path, compact_every: int
) -> None:
    found = moved(tmp_path, operator="none", compact_every=compact_every)

    (start,) = found.sources
    assert start.read_before == tuple(f"{n:05}.json" for n in range(8))


def test_a_directory_begins_with_the_files_that_were_not_read(tmp_path: Path) -> None:
    found = moved(tmp_path / "query", operator="none")
    (tmp_path / "in").mkdir()
    for number in range(13):
        (tmp_path / f"in/{number:05}.jsonl").write_text('{"v": 1}\n')
    read_before = [name.replace(".json", ".jsonl") for name in found.sources[0].read_before]

    source = json_lines_directory(
        tmp_path / "in", schema=pa.schema([("v", pa.int64())]), read_before=read_before
    )

    assert [split.name for split in source.find(set(), is_start=True)] == [
        f"{number:05}.jsonl" for number in range(8, 13)
    ]
    assert source.find({f"{n:05}.jsonl" for n in range(8, 13)}, is_start=False) == []


def test_state_watermark_and_unknown_sources_are_named_as_left_behind(tmp_path: Path) -> None:
    found = moved(tmp_path, operator="dedupe", sources=("rate", "kafka"))

    (start,) = found.sources
    assert start.index == 1
    assert [text.split(" stays behind: ")[-1] for text in found.left_behind[:1]] == [
        "a key that it had seen comes through once more."
    ]
    assert any("Source 0 (rate) has no offsets" in text for text in found.left_behind)
    assert any("The watermark begins again" in text for text in found.left_behind)


def test_a_batch_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="has no batch 99"):
        moved(tmp_path, batch_id=99)
