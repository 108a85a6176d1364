"""A rewind as a fork: a new directory with a new query id that continues from an earlier batch.

The original is only read. The fork holds the state of that batch and none of any later version, so
nothing of the abandoned timeline can come back. Logs of file sources end where the batch ends, so
Spark finds the input after it again. The caller chooses what happens to the log of a file sink.
"""

import uuid
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.storage.trees import Tree, check_is_apart, check_is_free
from pipelines.structured.directory import SINK_LOG
from pipelines.structured.formats import crc_of
from pipelines.structured.logs import LogContent, empty_sink_log_at, read_log, sink_log_at
from pipelines.structured.query import QueryDirectory
from pipelines.structured.savepoints import (
    MANIFEST,
    Copying,
    OnProgress,
    address_of,
    committed_batch,
    copy_batch,
    no_progress,
    read_savepoint,
    verify_savepoint,
)


class Boundaries(StrEnum):
    """The rows that the first batch of the fork takes."""

    SAME = "same"  # exactly those that it had; the batches after it are always new
    NEW = "new"  # those that the source offers then, within the limits that the code sets


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    batch_id: int
    boundaries: Boundaries = Boundaries.NEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """`next_batch` is the first batch that the fork runs."""

    location: str
    query_id: str
    from_query_id: str
    next_batch: int
    file_count: int
    size_bytes: int


def fork(
    source: Tree,
    query: QueryDirectory,
    target: Tree,
    request: ForkRequest,
    on_progress: OnProgress = no_progress,
) -> Fork:
    """Copy a batch of a query, or a savepoint, into `target`.

    Raises Rejected; then nothing remains there.
    """
    if source.read(MANIFEST) is not None:
        _check_savepoint(source, request)
    query_id = str(uuid.uuid4())
    copying = Copying(
        batch_id=request.batch_id,
        metadata=msgspec.json.encode({"id": query_id}),
        keeps_next=request.boundaries is Boundaries.SAME,
    )
    written = copy_batch(source, query, target, copying, on_progress)
    return Fork(
        location=target.location,
        query_id=query_id,
        from_query_id=query.query_id,
        next_batch=request.batch_id + 1,
        file_count=len(written),
        size_bytes=sum(each.size_bytes for each in written.values()),
    )


def _check_savepoint(source: Tree, request: ForkRequest) -> None:
    manifest = read_savepoint(source)
    if manifest.batch_id != request.batch_id:
        raise Rejected(
            f"The savepoint {source.location} holds batch {manifest.batch_id}, not"
            f" {request.batch_id}."
        )
    if problems := verify_savepoint(source):
        raise Rejected(f"The savepoint cannot be used: {problems[0]}")


def rewind_output(
    query: QueryDirectory, output: Tree, target: Tree, batch_id: int
) -> tuple[str, ...]:
    """Copy the files that a file sink had written up to the batch, with its log, into `target`.

    Readers of `target` see exactly that output, and the fork continues behind it. Returns the paths
    of the copied files. Raises Rejected if the output has no log, or if files are missing; then
    nothing remains.
    """
    log = _sink_log(query, output, target, batch_id)
    following = query.by_id.get(batch_id + 1)
    planned_ms = following.plan.planned_ms if following and following.plan else None
    rewound = sink_log_at(log, batch_id, planned_ms)
    try:
        return _write_output(output, target, rewound)
    except BaseException:
        target.delete_all()
        raise


def begin_output(
    query: QueryDirectory, output: Tree, target: Tree, batch_id: int, *, newest: int
) -> None:
    """Write an empty log of a file sink into `target`, a new place for the output of a fork.

    `newest` is the last batch that the fork has. Without this log, its sink would fail at its next
    compaction. Raises Rejected if the output has no log; then nothing remains.
    """
    log = _sink_log(query, output, target, batch_id)
    try:
        for name, content in empty_sink_log_at(log, newest).items():
            _write_with_sums(target, f"{SINK_LOG}/{name}", content)
    except BaseException:
        target.delete_all()
        raise


def _sink_log(query: QueryDirectory, output: Tree, target: Tree, batch_id: int) -> LogContent:
    """Raises Rejected if the output has no log, or if `target` is not free for a copy of it."""
    committed_batch(query, batch_id)
    if query.sink_log is None or query.sink_log.newest is None:
        raise Rejected(f"{output.location} has no {SINK_LOG}: it is no output of a file sink.")
    check_is_apart(target, output)
    check_is_free(target)
    return read_log(output, query.sink_log)


def _write_output(output: Tree, target: Tree, rewound: dict[str, bytes]) -> tuple[str, ...]:
    copied = []
    for name, content in rewound.items():
        lines = [b"v1"]
        for line in content.splitlines()[1:]:
            entry = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            path = msgspec.json.decode(entry["path"], type=str)
            relative = _relative(path, output)
            if relative not in copied:
                _copy_file(output, target, relative)
                copied.append(relative)
            entry["path"] = msgspec.Raw(msgspec.json.encode(_address(target, relative)))
            lines.append(msgspec.json.encode(entry))
        _write_with_sums(target, f"{SINK_LOG}/{name}", b"\n".join(lines))
    return tuple(copied)


def _relative(address: str, output: Tree) -> str:
    """Returns the path within the output.

    The log holds full addresses, with `file:` and one slash or three, or `s3a:`.
    """
    place = unquote(address).partition(":")[2].lstrip("/")
    root = output.location.rpartition("://")[2].strip("/")
    relative = place.removeprefix(f"{root}/")
    if relative == place:
        raise Rejected(f"{address} in the log of the output lies outside {output.location}.")
    return relative


def _address(target: Tree, relative: str) -> str:
    return f"{address_of(target)}/{quote(relative)}"


def _copy_file(output: Tree, target: Tree, relative: str) -> None:
    content = output.read(relative)
    if content is None:
        raise Rejected(
            f"{output.location}/{relative} is in the log and is missing; choose a new output."
        )
    target.write_new(relative, content)


def _write_with_sums(target: Tree, path: str, content: bytes) -> None:
    folder, _, name = path.rpartition("/")
    target.write_new(path, content)
    target.write_new(f"{folder}/.{name}.crc", crc_of(content))
