"""The progress of a restore: each expected file counts once, and every read moves the meter."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.errors import CorruptSnapshot, DamagedFile, Rejected
from pipelines.domain.events import RestoreProgress
from pipelines.domain.ids import Uid
from pipelines.domain.snapshots import FileHandle
from pipelines.runtime.subtask.operator_failure import OperatorFailed, damaged_file_of, is_damage
from pipelines.runtime.subtask.snapshots.restoring import MeteredFiles, RestoreMeter

BATCH = pa.record_batch([pa.array(range(10), pa.int64())], ["n"])  # 80 bytes
LARGE = FileHandle(name="large", length=200, digest="")
SMALL = FileHandle(name="small", length=30, digest="")
OTHER = FileHandle(name="other", length=1_000, digest="")


def test_a_file_counts_as_it_is_read_and_as_a_whole_at_its_end(tmp_path: Path) -> None:
    meter, files = metered()
    meter.expect([LARGE, SMALL])

    seen = [meter.progress() for _ in files.read_batches("", LARGE)]
    seen.append(meter.progress())
    files.fetch("", SMALL, tmp_path)
    seen.append(meter.progress())

    assert [(p.read_bytes, p.read_files) for p in seen] == [
        (0, 0),
        (80, 0),
        (160, 0),
        (200, 1),
        (230, 2),
    ]
    assert {(p.total_bytes, p.total_files) for p in seen} == {(230, 2)}


def test_a_file_that_is_read_twice_counts_once() -> None:
    meter, files = metered()
    meter.expect([SMALL])

    for _ in range(2):
        assert len(list(files.read_batches("", SMALL))) == 3

    assert meter.progress() == RestoreProgress(
        read_bytes=30, total_bytes=30, read_files=1, total_files=1
    )


def test_an_unexpected_file_is_news_but_not_part_of_the_total() -> None:
    meter, files = metered()
    meter.expect([SMALL])
    assert meter.has_news()
    assert not meter.has_news()

    list(files.read_batches("", OTHER))

    assert meter.has_news()
    assert meter.progress().read_bytes == 0


def test_a_step_without_a_file_is_news() -> None:
    meter = RestoreMeter()
    assert not meter.has_news()

    meter.step()

    assert meter.has_news()


def test_damage_names_the_file_that_it_is_in(tmp_path: Path) -> None:
    files = MeteredFiles(Torn(), RestoreMeter())

    for read in (
        lambda: list(files.read_batches("", LARGE)),
        lambda: files.fetch("", LARGE, tmp_path),
    ):
        with pytest.raises(DamagedFile, match="is torn") as met:
            read()
        assert damaged_file_of(OperatorFailed(Uid("both"), (), met.value)) == "large"
        assert is_damage(OperatorFailed(Uid("both"), (), met.value))


def test_damage_may_be_reported_without_a_file() -> None:
    torn = CorruptSnapshot("the database cannot be opened")

    assert (is_damage(torn), damaged_file_of(torn)) == (True, None)
    assert not is_damage(Rejected("the flow has changed"))


class ThreeBatches:
    """Implements `ReadsFiles`."""

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        return iter([BATCH] * 3)

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        pass


def metered() -> tuple[RestoreMeter, MeteredFiles]:
    meter = RestoreMeter()
    return meter, MeteredFiles(ThreeBatches(), meter)


class Torn:
    """Implements `ReadsFiles`."""

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise CorruptSnapshot(f"{file.name} is torn.")

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        raise CorruptSnapshot(f"{file.name} is torn.")
