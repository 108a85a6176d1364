"""A directory is listed once for a run, and the run's slots receive what was found."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.files.growing_directory import json_lines_directory
from pipelines.connectors.files.input_files import input_files, write_listing
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.values import JsonValues
from pipelines.connectors.positions import Beginning, listing_once
from pipelines.connectors.redis.streams import RedisStreams
from pipelines.connectors.source import BeginsOnce
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid

SCHEMA = pa.schema([("key", pa.int64())])


def test_a_known_listing_shows_the_same_files_after_the_directory_changed(
    tmp_path: Path,
) -> None:
    for name in ("b.csv", "a.csv", ".hidden.csv", "_other.csv", "c.jsonl"):
        (tmp_path / name).touch()
    with listing_once({}) as listed:
        first = input_files(tmp_path, ".csv")
        (tmp_path / "aa.csv").touch()
        assert input_files(tmp_path, ".csv") == first
        assert input_files(tmp_path, ".jsonl") == (tmp_path / "c.jsonl",)
    (tmp_path / "b.csv").unlink()

    with listing_once(listed) as again:
        assert input_files(str(tmp_path), ".csv") == first
    assert again == listed
    assert input_files(tmp_path, ".csv") == (tmp_path / "a.csv", tmp_path / "aa.csv")


def test_a_directory_with_its_own_listing_is_read_by_it(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).touch()
    write_listing(tmp_path)
    (tmp_path / "c.csv").touch()

    with listing_once({}) as listed:
        files = input_files(tmp_path, ".csv")

    assert files == (tmp_path / "a.csv", tmp_path / "b.csv")
    assert list(listed.values()) == [["a.csv", "b.csv"]]


def test_files_given_by_name_are_not_listed(tmp_path: Path) -> None:
    with listing_once({}) as listed:
        assert input_files([tmp_path / "x.csv"], ".csv") == (tmp_path / "x.csv",)

    assert listed == {}


def test_a_missing_directory_is_not_reported_as_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="does not exist"):
        input_files(tmp_path / "gone", ".csv")
    with pytest.raises(Rejected, match=r"There are no \.csv files"):
        input_files(tmp_path, ".csv")


def test_a_beginning_survives_packing_and_is_small() -> None:
    splits = {Uid("clicks"): [SplitProgress("clicks-0", 7, end_offset=9)]}
    names = [f"part-{number:08}.parquet" for number in range(1_000)]
    found = Beginning(directories={"/data/*.parquet": names}, splits=splits)

    assert Beginning.unpacked(found.packed()) == found
    assert len(found.packed()) < 10 * len(names)
    assert Beginning.unpacked(b"") == Beginning()


def test_logs_have_one_common_beginning_and_directories_do_not(tmp_path: Path) -> None:
    redis = RedisStreams("redis://localhost", ("s",), schema=SCHEMA)
    kafka = KafkaTopics(KafkaAddress("localhost:9092"), ("t",), format=JsonValues(SCHEMA))

    assert isinstance(redis, BeginsOnce)
    assert isinstance(kafka, BeginsOnce)
    assert not isinstance(json_lines_directory(tmp_path, schema=SCHEMA), BeginsOnce)
