"""The stores under one suite: how a test looks into each of them and damages its contents."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import MANIFEST, seal
from pipelines.storage.object_store import ObjectCheckpointStore
from pipelines.storage.store import CheckpointStore
from pipelines.storage.stores import MemoryCheckpointStore
from tests.object_server import BUCKET, ObjectServer


class StoredPoints(Protocol):
    """One kind of store, with access that only tests have."""

    store: CheckpointStore
    root: str

    def content(self, location: str, file: FileHandle) -> bytes: ...

    def damaged(self, location: str, file: FileHandle, content: bytes | None) -> FileHandle:
        """Replaces the file, or deletes it if `content` is None; returns its new handle."""
        ...

    def manifest_content(self, location: str) -> bytes: ...

    def replace_manifest(self, location: str, content: bytes) -> None: ...

    def is_empty(self, location: str) -> bool: ...


class FilePoints:
    def __init__(self, directory: Path) -> None:
        self.root = str(directory / "jobs")
        self.store: CheckpointStore = FileSystemCheckpointStore([self.root])

    def content(self, location: str, file: FileHandle) -> bytes:
        return (Path(location) / file.name).read_bytes()

    def damaged(self, location: str, file: FileHandle, content: bytes | None) -> FileHandle:
        path = Path(location) / file.name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        return file

    def manifest_content(self, location: str) -> bytes:
        return (Path(location) / MANIFEST).read_bytes()

    def replace_manifest(self, location: str, content: bytes) -> None:
        (Path(location) / MANIFEST).write_bytes(content)

    def is_empty(self, location: str) -> bool:
        return not Path(location).exists()


class ObjectPoints:
    def __init__(self, server: ObjectServer) -> None:
        self._server = server
        self.root = server.new_root()
        self.store: CheckpointStore = ObjectCheckpointStore([self.root])

    def content(self, location: str, file: FileHandle) -> bytes:
        return self._get(location, file.name)

    def damaged(self, location: str, file: FileHandle, content: bytes | None) -> FileHandle:
        path = self._path(location, file.name)
        if content is None:
            self._server.ask("DELETE", path)
        else:
            self._server.ask("PUT", path, content)
        return file

    def manifest_content(self, location: str) -> bytes:
        return self._get(location, MANIFEST)

    def replace_manifest(self, location: str, content: bytes) -> None:
        self._server.ask("PUT", self._path(location, MANIFEST), content)

    def is_empty(self, location: str) -> bool:
        prefix = location.removeprefix(f"s3://{BUCKET}/")
        _, listing = self._server.ask("GET", f"/{BUCKET}?list-type=2&prefix={prefix}/")
        return b"<Key>" not in listing

    def _get(self, location: str, name: str) -> bytes:
        return self._server.ask("GET", self._path(location, name))[1]

    def _path(self, location: str, name: str) -> str:
        return location.removeprefix("s3:/") + "/" + name


class MemoryPoints:
    """A file is part of its handle, so a test damages it in the manifest that holds the handle."""

    def __init__(self) -> None:
        self.root = "memory://run-1"
        self._memory = MemoryCheckpointStore(max_state_bytes=1 << 20)
        self.store: CheckpointStore = self._memory

    def content(self, location: str, file: FileHandle) -> bytes:
        return file.content or b""

    def damaged(self, location: str, file: FileHandle, content: bytes | None) -> FileHandle:
        damaged = msgspec.structs.replace(file, content=content)
        if location in self._memory._points:
            manifest = with_file(self._memory.manifest(location), damaged)
            self._memory._points[location] = seal(manifest)
        return damaged

    def manifest_content(self, location: str) -> bytes:
        return self._memory._points[location]

    def replace_manifest(self, location: str, content: bytes) -> None:
        self._memory._points[location] = content

    def is_empty(self, location: str) -> bool:
        return location not in self._memory._points


def with_file(manifest: Manifest, file: FileHandle) -> Manifest:
    """Returns the manifest with this handle in place of the one of the same name."""
    document = msgspec.to_builtins(manifest)
    for subtask in document["subtasks"]:
        for operator in subtask["operators"]:
            for state in operator["states"]:
                if state["file"]["name"] == file.name:
                    state["file"] = msgspec.to_builtins(file)
    return msgspec.convert(document, Manifest)


@contextmanager
def named_environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
