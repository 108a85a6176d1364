"""Nothing outside the configured roots is read, written or deleted, however it is named."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.snapshots import FileHandle
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.object_store import ObjectCheckpointStore
from pipelines.storage.roots import StorageRoots
from pipelines.storage.store import CheckpointStore
from tests.contracts.stored_points import named_environment
from tests.object_server import BUCKET, ObjectServer, never
from tests.unit.storage.points import SCHEMA, manifest_of

FILE = FileHandle(name="count-0.arrow", length=1, digest="")
TOUCHES: list[Callable[[CheckpointStore, str], object]] = [
    lambda store, at: store.write_batches(at, "count-0", SCHEMA, [], open_format=False),
    lambda store, at: list(store.read_batches(at, FILE)),
    lambda store, at: store.publish(at, manifest_of([])),
    lambda store, at: store.manifest(at),
    lambda store, at: store.verify(at),
    lambda store, at: store.published(at),
    lambda store, at: store.names(at),
    lambda store, at: store.discard(at),
]


@pytest.fixture
def server(objects: ObjectServer) -> Iterator[ObjectServer]:
    objects.plan(never)
    with named_environment(objects.environment):
        yield objects


@pytest.mark.parametrize(
    "outside",
    [
        "elsewhere",
        "jobs/zero\0byte",
        "jobs-of-others",
        "jobs/../elsewhere",
        "link",
        "jobs/link",
        "jobs/loop/../../elsewhere",
        "jobs/loop/../link",
        "jobs/loop/../link/chk-1",
        "jobs/behind/chk-1",
        "s3://jobs/x",
        "/",
    ],
)
def test_the_store_touches_no_directory_outside_its_root(tmp_path: Path, outside: str) -> None:
    for name in ("jobs", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "jobs" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "jobs" / "loop").symlink_to(tmp_path / "jobs" / "loop")
    (tmp_path / "jobs" / "behind").symlink_to("loop/../link")
    before = sorted(tmp_path.rglob("*"))
    store = FileSystemCheckpointStore([str(tmp_path / "jobs")])
    location = outside if outside.startswith("s3:") else str(tmp_path / outside)

    for touch in TOUCHES:
        with pytest.raises(Rejected, match="outside the configured storage") as refusal:
            touch(store, location)
        assert str(refusal.value).count(". ") == 0
        assert str(tmp_path / "jobs") in str(refusal.value)

    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_that_leads_to_itself_is_a_retryable_disk_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    store = FileSystemCheckpointStore([str(tmp_path)])

    with pytest.raises(Retryable):
        store.prepare(str(tmp_path / "loop" / "chk-1"))


def test_a_path_outside_the_root_is_refused_even_if_links_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path outside the root by its name is refused even if the system does not answer."""
    store = FileSystemCheckpointStore([str(tmp_path / "jobs")])

    def fail(path: object) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "readlink", fail)

    with pytest.raises(Retryable, match=r"cannot be looked up: .*Stale file handle"):
        store.names(str(tmp_path / "jobs" / "chk-1"))
    with pytest.raises(Rejected, match="outside the configured storage"):
        store.names(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize(
    "outside",
    [
        f"s3://{BUCKET}/job",
        f"s3://{BUCKET}/jobs-of-others/chk-1",
        f"s3://{BUCKET}",
        "s3://other/jobs/chk-1",
        f"s3://{BUCKET}/jobs/../elsewhere",
        f"s3://{BUCKET}/jobs/./chk-1",
        f"s3://{BUCKET}//jobs/chk-1",
        f"s3://{BUCKET}/jobs//chk-1",
        "s3:///jobs/chk-1",
    ],
)
def test_the_store_touches_no_object_outside_its_root(server: ObjectServer, outside: str) -> None:
    store = ObjectCheckpointStore([f"s3://{BUCKET}/jobs"])

    for touch in TOUCHES:
        with pytest.raises(Rejected, match=r"outside the configured|no place in an object store"):
            touch(store, outside)

    assert server.requests == []


def test_an_object_key_is_never_percent_decoded(server: ObjectServer) -> None:
    store = ObjectCheckpointStore([f"s3://{BUCKET}/jobs"])

    store.publish(f"s3://{BUCKET}/jobs/%2e%2e", manifest_of([]))

    assert [request.path for request in server.requests] == [
        f"/{BUCKET}/jobs/%252e%252e/manifest.json"
    ]


def test_a_root_itself_is_never_discarded(tmp_path: Path, server: ObjectServer) -> None:
    roots = [str(tmp_path / "jobs"), f"s3://{BUCKET}/jobs"]

    for store, root in zip(
        [FileSystemCheckpointStore(roots), ObjectCheckpointStore(roots)], roots, strict=True
    ):
        with pytest.raises(Rejected, match="is the storage itself"):
            store.discard(root + "/")


def test_directory_and_bucket_roots_can_be_combined(tmp_path: Path) -> None:
    roots = StorageRoots([str(tmp_path), "s3://bucket/prefix", "s3://whole"])

    on_disk, in_buckets = ("x", "./x/"), ("bucket/prefix/x", "whole/x", "whole/x/")
    for inside in (*(f"{tmp_path}/{x}" for x in on_disk), *(f"s3://{x}" for x in in_buckets)):
        roots.check(inside)
    for outside in ("/elsewhere", "s3://bucket/x", "ftp://bucket/prefix/x", "memory:x"):
        with pytest.raises(Rejected, match="outside the configured storage"):
            roots.check(outside)
