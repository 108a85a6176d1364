"""A growing directory: which files the source sees, and files that change after it found them."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files.growing_directory import GrowingDirectory, json_lines_directory
from pipelines.connectors.positions import check_still_there
from pipelines.domain.errors import Rejected, Retryable

SCHEMA = pa.schema([("id", pa.int64())])


def test_files_are_read_in_name_order_and_unfinished_ones_are_skipped(
    tmp_path: Path,
) -> None:
    for name in ("b.jsonl", "a.jsonl", ".c.jsonl", "_d.jsonl", "e.txt"):
        (tmp_path / name).write_text('{"id": 1}\n')

    found = source_in(tmp_path).find(set(), is_start=True)

    assert [split.name for split in found] == ["a.jsonl", "b.jsonl"]


def test_a_file_that_changed_after_it_was_found_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": 1}\n')
    source = source_in(tmp_path)
    (split,) = source.find(set(), is_start=True)

    with file.open("a") as more:
        more.write('{"id": 2}\n')

    with pytest.raises(Rejected, match=r"a\.jsonl has changed since it was found; put only comple"):
        check_still_there(source, split)


def test_a_file_that_vanished_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    source = source_in(tmp_path)
    (split,) = source.find(set(), is_start=True)
    (tmp_path / "a.jsonl").unlink()

    with pytest.raises(Rejected, match=r"a\.jsonl \(records from 0 on\) is gone"):
        check_still_there(source, split)


def test_a_directory_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="elsewhere does not exist"):
        source_in(tmp_path / "elsewhere").validate()


@pytest.mark.parametrize("name", ["elsewhere", "a-file", "x" * 300])
@pytest.mark.parametrize("is_bounded", [True, False])
def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, name: str, is_bounded: bool
) -> None:
    (tmp_path / "a-file").touch()
    look_every = None if is_bounded else timedelta(seconds=1)
    source = json_lines_directory(tmp_path / name, schema=SCHEMA, look_every=look_every)

    with pytest.raises(Retryable, match=f"Listing .*{name} failed"):
        source.find(set(), is_start=True)
    with pytest.raises(Rejected, match=f"{name} (does not exist|cannot be listed: .*)\\.$"):
        source.validate()


def test_a_malformed_file_is_refused_at_the_start_and_an_empty_directory_is_not(
    tmp_path: Path,
) -> None:
    source_in(tmp_path).validate()
    (tmp_path / "a.jsonl").write_text("oops\n")

    with pytest.raises(Rejected, match=r"a\.jsonl is malformed in line 1"):
        source_in(tmp_path).validate()


def test_a_file_that_vanishes_during_discovery_is_retryable(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "nowhere")

    with pytest.raises(Retryable):
        source_in(tmp_path).find(set(), is_start=False)


def test_the_discovery_interval_is_reported_in_milliseconds(tmp_path: Path) -> None:
    source = json_lines_directory(tmp_path, schema=SCHEMA, look_every=timedelta(seconds=2))

    assert source.discovery_interval_ms == 2_000


def source_in(directory: Path) -> GrowingDirectory:
    return json_lines_directory(directory, schema=SCHEMA)
