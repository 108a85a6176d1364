"""A storage that cannot do something at the moment is never called damaged, in either store.

The tests do each operation once for every call that it makes and every usual error of a system. The
newest commit chooses a part of the other errors.
It succeeds with the same answer, or raises Retryable. A store that took the error for an answer
would end a run, or delete what a point needs.
"""

import builtins
import errno
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.snapshots import FileHandle
from pipelines.storage.object_store import ObjectCheckpointStore, ObjectStoreLimits
from pipelines.storage.store import CheckpointStore, shared_location
from tests.commit_share import share_of
from tests.contracts.stored_points import FilePoints, ObjectPoints, StoredPoints, named_environment
from tests.object_server import Fault, ObjectServer, never, on_number
from tests.unit.storage.points import SCHEMA, manifest_of, rows

pytestmark = pytest.mark.slow

NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
"""These codes are answers; the tests of damage cover them."""
USUAL = (
    *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EBUSY),
    *(errno.ESTALE, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EBADF, errno.EXDEV),
    *(errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ETIMEDOUT, errno.ECONNRESET),
)
RARE = sorted(set(errno.errorcode) - {*NOT_THERE, *USUAL})
SHARE = 6
"""Each commit tries one in so many of the rare codes; with 1, it tries all."""
CALLS_MAX = 200
CALLS = (
    *("readlink", "lstat", "stat", "listdir", "scandir", "open", "fstat", "mkdir", "rename"),
    *("link", "unlink", "rmdir", "fsync"),
)
FAULTS = [
    Fault.SERVER_ERROR,
    Fault.SLOW_DOWN,
    Fault.DENIED,
    Fault.CUT_UPLOAD,
    Fault.LOST_ANSWER,
    Fault.CUT_ANSWER,
    Fault.NO_BUCKET,
    Fault.ELSEWHERE,
]


@dataclass(frozen=True, slots=True)
class Place:
    """A whole point with one file of its own and one that it shares."""

    store: CheckpointStore
    root: str
    location: str
    own: FileHandle
    shared: FileHandle
    scratch: Path

    @property
    def target(self) -> Path:
        """Returns a new path each time."""
        return Path(tempfile.mkdtemp(dir=self.scratch)) / "copy"

    @property
    def other(self) -> str:
        return f"{self.location}0"


Act = Callable[[Place, Path], object]
READS: dict[str, Act] = {
    "manifest": lambda at, _: at.store.manifest(at.location),
    "verify": lambda at, _: at.store.verify(at.location),
    "names": lambda at, _: sorted(at.store.names(at.root)),
    "published": lambda at, _: sorted(at.store.published(at.root)),
    "published among": lambda at, _: at.store.published(at.root, among=["chk-1", "chk-9"]),
    "look at": lambda at, _: at.store.problem_of(at.location, at.own, reads=False),
    "look at shared": lambda at, _: at.store.problem_of(at.location, at.shared, reads=False),
    "read through": lambda at, _: at.store.problem_of(at.location, at.own, reads=True),
    "read": lambda at, _: list(at.store.read_batches(at.location, at.own)),
    "read shared": lambda at, _: list(at.store.read_batches(at.location, at.shared)),
    "fetch": lambda at, target: at.store.fetch(at.location, at.own, target),
    "fetch to share": lambda at, target: at.store.fetch(
        at.location, at.own, target, may_share=True
    ),
}
CHANGES: dict[str, Act] = {
    "prepare": lambda at, _: at.store.prepare(at.other),
    "write": lambda at, target: at.store.write_batches(
        at.other, target.parent.name, SCHEMA, [rows()], open_format=False
    ),
    "write a file": lambda at, target: at.store.write_file(
        at.other, f"{target.parent.name}.sst", [b"rows", b"more"]
    ),
    "publish": lambda at, _: at.store.publish(at.location, at.store.manifest(at.location)),
    "delete": lambda at, _: at.store.delete(at.location, ["none.arrow", "neither.arrow"]),
    "discard": lambda at, _: at.store.discard(at.other),
}


@pytest.mark.parametrize("act", READS | CHANGES)
@pytest.mark.parametrize("points", ["files", "objects"], indirect=True)
def test_no_system_error_at_any_call_is_mistaken_for_an_answer(place: Place, act: str) -> None:
    """With an object store, these are the calls on this machine, where it keeps a copy."""
    do = (READS | CHANGES)[act]
    normal = do(place, place.target)
    calls = calls_of(lambda target: do(place, target), place)
    codes = (*USUAL, *share_of(RARE, SHARE))

    for number, call in enumerate(calls, start=1):
        for code in codes:
            if (call, code) == ("readlink", errno.EINVAL):
                continue  # the answer that a place is no link
            target = place.target
            with failing(number, code) as made:
                outcome = outcome_of(do, place, target)
            said = f"{os.strerror(code)} at {call}, call {number} of {act}: {outcome!r}"
            assert made[-1] == call or len(made) >= number, said
            assert isinstance(outcome, Retryable) or act in CHANGES or outcome == normal, said
            assert not isinstance(outcome, Exception) or isinstance(outcome, Retryable), said

    assert place.store.verify(place.location) == []


@pytest.mark.parametrize("act", READS)
@pytest.mark.parametrize("points", ["files", "objects"], indirect=True)
def test_a_missing_file_never_surfaces_as_a_bare_system_error(place: Place, act: str) -> None:
    calls = calls_of(lambda target: READS[act](place, target), place)

    for number in range(1, len(calls) + 1):
        for code in NOT_THERE:
            target = place.target
            with failing(number, code):
                outcome = outcome_of(READS[act], place, target)
            told = isinstance(outcome, Retryable | CorruptSnapshot)
            assert told or not isinstance(outcome, Exception), (calls[number - 1], outcome)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("act", READS | CHANGES)
@pytest.mark.parametrize("points", ["objects"], indirect=True)
def test_no_object_store_fault_at_any_request_is_mistaken_for_an_answer(
    place: Place, objects: ObjectServer, act: str, fault: Fault
) -> None:
    do = (READS | CHANGES)[act]
    normal = do(place, place.target)

    for number in range(1, CALLS_MAX):
        objects.plan(on_number(number, fault))
        outcome = outcome_of(do, place, place.target)
        count = len(objects.requests)
        objects.plan(never)
        said = f"{fault} at request {number} of {act}: {outcome!r}"
        assert isinstance(outcome, Retryable) or act in CHANGES or outcome == normal, said
        assert not isinstance(outcome, Exception) or isinstance(outcome, Retryable), said
        if count < number:
            break

    assert place.store.verify(place.location) == []


@pytest.mark.parametrize("points", ["files"], indirect=True)
def test_a_point_without_read_permission_is_not_skipped(place: Place) -> None:
    """`Path.glob` would pass it over, and the sweep deletes what is not published."""
    with denied(Path(place.location)), pytest.raises(Retryable, match=r"chk-1/manifest\.json"):
        place.store.published(place.root)
    with denied(Path(place.location)), pytest.raises(Retryable, match=r"chk-1/manifest\.json"):
        place.store.published(place.root, among=["chk-1"])
    assert place.store.published(place.root) == [place.location]


@pytest.fixture(autouse=True)
def skip_the_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture
def points(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredPoints]:
    if request.param == "files":
        yield FilePoints(tmp_path)
        return
    server: ObjectServer = request.getfixturevalue("objects")
    server.plan(never)
    with named_environment(server.environment):
        points = ObjectPoints(server)
        points.store = ObjectCheckpointStore([points.root], ObjectStoreLimits(retries=0))
        yield points
    server.plan(never)


@pytest.fixture
def place(points: StoredPoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    store, root = points.store, f"{points.root}/checkpoints"
    location = f"{root}/chk-1"
    own = store.write_batches(location, "own", SCHEMA, [rows()], open_format=False)
    beside = shared_location(location)
    written = store.write_batches(beside, "shared", SCHEMA, [rows()], open_format=False)
    shared = msgspec.structs.replace(written, is_shared=True)
    store.publish(location, manifest_of([own, shared]))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # if removing an upload's spool is made to fail, the spool stays
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return Place(store, root, location, own, shared, scratch)


def outcome_of(do: Act, place: Place, target: Path) -> object:
    try:
        return do(place, target)
    except Exception as error:
        return error


def calls_of(do: Callable[[Path], object], place: Place) -> list[str]:
    target = place.target
    with failing(CALLS_MAX, errno.EIO) as made:
        do(target)
    assert len(made) < CALLS_MAX
    return list(made)


@contextmanager
def failing(number: int, code: int) -> Iterator[list[str]]:
    """Makes the call of this number fail, whatever it is; yields the names of the calls made."""
    made: list[str] = []

    def step(name: str) -> None:
        made.append(name)
        if len(made) == number:
            raise OSError(code, os.strerror(code))

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any, **options: Any) -> Any:
            step(name)
            return call(*args, **options)

        return do

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> Any:
            step("read")
            return super().read(-1 if size is None else size)

        def write(self, content: Any) -> int:
            step("write")
            return super().write(content)

        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open:
                step("close")

    def opened(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        step("open file")
        if "b" not in mode or not isinstance(path, str | os.PathLike):
            return io.open(path, mode, *args, **options)  # noqa: UP020 - builtins' is replaced
        return Counted(os.fspath(path), mode.replace("b", ""))

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        patch.setattr(builtins, "open", opened)
        yield made


@contextmanager
def denied(directory: Path) -> Iterator[None]:
    """Denies access in Python, because no permission stops root."""
    ask = os.stat

    def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(directory):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return ask(path, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", stat)
        patch.setattr(os, "lstat", stat)
        yield
