"""No report of another system and no backup breaks the control plane: each is used or rejected."""

import gzip
import hashlib
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from ftdash.deployment import backups
from ftdash.deployment.backups import DATABASE, MANIFEST, read_manifest, unpack
from ftdash.flink_clusters import bodies
from ftdash.flink_clusters.bodies import decoded, first_error
from ftdash.watching.progress import Event, QueryEvent, understood
from ftdash.watching.reading import look_into, read_log
from pipelines.domain.errors import Rejected
from tests.fuzzing import fuzz, only_raising
from tests.structured_directories import Traits, write_query

FLINK: dict[str, dict[str, object]] = json.loads(
    (Path(__file__).parents[1] / "web" / "watched_flink" / "2.3.json").read_text()
)
VERTEX = bodies.Vertex(id="0" * 32, name="count", parallelism=2)


def recorded(body: str) -> bytes:
    return json.dumps(FLINK[body]["body"]).encode()


def told_failure(content: bytes) -> object:
    found = decoded(content, bodies.TriggerResult, "/trigger").operation
    return found and found.failure and found.failure.first_line


ANSWERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "config of Flink": (
        lambda content: decoded(content, bodies.DashboardConfig, "/config"),
        recorded("config"),
    ),
    "jobs of Flink": (
        lambda content: decoded(content, bodies.JobsOverview, "/jobs/overview"),
        recorded("jobs_overview"),
    ),
    "job of Flink": (
        lambda content: decoded(content, bodies.JobDetail, "/jobs/1"),
        recorded("job"),
    ),
    "checkpoints of Flink": (
        lambda content: decoded(content, bodies.Checkpoints, "/checkpoints").all(),
        recorded("checkpoints"),
    ),
    "subtasks of Flink": (
        lambda content: bodies.parts_of("1", decoded(content, bodies.VertexCheckpoint, "/1")),
        recorded("subtasks_0"),
    ),
    "backpressure of Flink": (
        lambda content: bodies.pressure_of(VERTEX, decoded(content, bodies.VertexPressure, "/1")),
        recorded("backpressure_0"),
    ),
    "exceptions of Flink": (
        lambda content: decoded(content, bodies.Exceptions, "/exceptions"),
        recorded("exceptions"),
    ),
    "trigger of Flink": (told_failure, recorded("savepoint_failed")),
    "answer of Flink": (
        lambda content: decoded(content, bodies.Settings, "/checkpoints/config"),
        recorded("checkpoints_config"),
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_any_answer_of_a_cluster_is_used_or_rejected(answer: str) -> None:
    use, valid = ANSWERS[answer]

    assert use(valid) is not None
    fuzz(answer, valid, only_raising(use, Rejected))


def test_any_error_of_a_cluster_is_a_line_or_empty() -> None:
    assert first_error(b'{"errors":["No such job.\\nat x"]}') == "No such job."
    fuzz("message of Flink", b'{"errors":["No such job.\\nat x"]}', first_error)


PROGRESS = {
    "id": "q",
    "runId": "r",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 1,
    "batchDuration": 5,
    "numInputRows": 5,
    "durationMs": {"triggerExecution": 5},
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "stateOperators": [{"operatorName": "dedupe", "customMetrics": {"loads": 1}}],
    "sources": [
        {"description": "kafka", "endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 7}}}
    ],
    "sink": {"description": "files", "numOutputRows": 1},
}
PREFIX = "org.apache.spark.sql.streaming.StreamingQueryListener$Query"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
A_LINE = msgspec.json.encode({"Event": f"{PREFIX}ProgressEvent", "progress": PROGRESS}) + b"\n"
ENDED = {
    "Event": f"{PREFIX}TerminatedEvent",
    "id": "q",
    "runId": "r",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "exception": "full",
}


@pytest.mark.parametrize(
    ("name", "valid"),
    [("event log", A_LINE), ("end in an event log", msgspec.json.encode(ENDED) + b"\n")],
)
def test_any_line_of_an_event_log_is_understood_or_left_out(
    name: str, valid: bytes, tmp_path: Path
) -> None:
    def follow(content: bytes) -> list[QueryEvent]:
        (tmp_path / "events_1_app").write_bytes(content)
        step = read_log(str(tmp_path), [str(tmp_path)], {})
        told, problems = understood(step.events, NOW)
        assert len(told) + len(problems) == len(step.events)
        return told

    assert len(follow(valid)) == 1
    fuzz(name, valid, only_raising(follow, Rejected))


def test_any_report_of_a_listener_is_understood_or_named_as_a_problem() -> None:
    def take(content: bytes) -> list[QueryEvent]:
        try:
            event = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []  # the interface answers such a body itself
        told, problems = understood([event], NOW)
        assert len(told) + len(problems) == 1
        return told

    valid = msgspec.json.encode({"kind": "progress", "progress": PROGRESS})
    assert msgspec.json.decode(valid, type=Event).progress is not None
    assert len(take(valid)) == 1
    fuzz("report of a listener", valid, take)


FILES = ("metadata", "offsets/1", "commits/1", "sources/in1/1", "state/0/_metadata/metadata")


@pytest.mark.parametrize("file", FILES)
def test_a_directory_with_any_content_in_a_file_can_be_looked_into(
    file: str, tmp_path: Path
) -> None:
    query = write_query(
        tmp_path, Traits(sources=("kafka", "file"), newest=2, has_names=True, has_sums=False)
    )
    place, roots = query.checkpoint / file, [str(tmp_path)]
    valid = place.read_bytes()

    def look(content: bytes) -> object:
        place.write_bytes(content)
        found = look_into(str(query.checkpoint), roots, output=str(query.output))
        return [(each.committed_at, each.kept_until) for each in found.found.points]

    parser = file.partition("/")[0]
    assert look(valid)
    fuzz(f"{parser} in a directory", valid, only_raising(look, Rejected))


def test_a_directory_with_names_that_only_look_like_numbers_can_be_looked_into(
    tmp_path: Path,
) -> None:
    query = write_query(tmp_path, Traits(newest=1))
    for folder in ("offsets", "commits", "sources/0", "state/0"):
        (query.checkpoint / folder / "²").write_bytes(b"")
        (query.checkpoint / folder / ("9" * 40)).write_bytes(b"")

    assert look_into(str(query.checkpoint), [str(tmp_path)]).found.newest_committed == 1


def a_backup(content: bytes = b"rows" * 100, first: tarfile.TarInfo | None = None) -> bytes:
    manifest = {
        "format": 1,
        "made_at": "2026-01-01T00:00:00Z",
        "vendor": "sqlite",
        "migrations": [["jobs", "0001_initial"]],
        "sha256": {DATABASE: hashlib.sha256(content).hexdigest()},
    }
    first = first or plain(MANIFEST)
    return tar_of((first, json.dumps(manifest).encode()), (plain(DATABASE), content))


def plain(name: str) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.mtime = 1.5  # written in a header of its own, as in a real backup
    return found


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member, content in members:
            if member.isreg():
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def restored(tmp_path: Path, packed: bytes) -> set[str]:
    """Unpacks a backup, as a restore does before it touches the installation."""
    place, target = tmp_path / "backup", tmp_path / "restored"
    place.write_bytes(packed)
    target.mkdir(exist_ok=True)
    read_manifest(place)
    unpack(place, target)
    return {each.name for each in target.iterdir()}


def test_any_file_is_unpacked_as_a_backup_or_rejected(tmp_path: Path) -> None:
    def use(content: bytes) -> None:
        assert restored(tmp_path, content) == {DATABASE}

    assert restored(tmp_path, gzip.compress(a_backup())) == {DATABASE}
    fuzz("backup", gzip.compress(a_backup()), only_raising(use, Rejected))


def test_any_archive_is_unpacked_as_a_backup_or_rejected(tmp_path: Path) -> None:
    def use(content: bytes) -> None:
        assert restored(tmp_path, gzip.compress(content, 1)) == {DATABASE}

    assert restored(tmp_path, gzip.compress(a_backup())) == {DATABASE}
    fuzz("archive of a backup", a_backup(), only_raising(use, Rejected))


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    return found


def sparse(name: str) -> bytes:
    """Returns an archive with a file that holds nothing and claims an exabyte."""
    packed = bytearray(tar_of((plain(name), b"")))
    at = packed.rindex(name.encode() + b"\0")
    packed[at + 156 : at + 157] = tarfile.GNUTYPE_SPARSE
    packed[at + 483 : at + 495] = b"\x80" + (1 << 60).to_bytes(11, "big")
    checksum = sum(packed[at : at + 148]) + 8 * 32 + sum(packed[at + 156 : at + 512])
    packed[at + 148 : at + 156] = f"{checksum:06o}\0 ".encode()
    return bytes(packed)


def long_record() -> bytes:
    """Returns a backup whose first header claims to have a record longer than any memory."""
    record, longer = b"13 mtime=1.5\n", b"9" * 20 + b" mtime=1.5\n"
    return a_backup().replace(record.ljust(len(longer), b"\0"), longer, 1)


MANY = tuple((plain(f"file-{number}"), b"") for number in range(9))
LONG_HEADER = plain(MANIFEST)
LONG_HEADER.pax_headers = {"comment": "a" * (1 << 20)}
MALICIOUS = {
    "a file outside": tar_of((plain("../outside"), b"x")),
    "an absolute name": tar_of((plain("/tmp/outside"), b"x")),
    "a link that leads out": tar_of((link(MANIFEST, "/etc/passwd", tarfile.SYMTYPE), b"")),
    "a link to itself": tar_of((link(MANIFEST, MANIFEST, tarfile.SYMTYPE), b"")),
    "a hard link": tar_of((link(MANIFEST, "other", tarfile.LNKTYPE), b"")),
    "a device": tar_of((link(MANIFEST, "", tarfile.CHRTYPE), b"")),
    "a sparse file": sparse(MANIFEST),
    "many files": tar_of(*MANY),
    "a long header": a_backup(first=LONG_HEADER),
    "a long record of a header": long_record(),
    "a deep manifest": tar_of((plain(MANIFEST), b'{"a":' + b"[" * 5_000)),
}


@pytest.mark.parametrize("archive", MALICIOUS)
def test_a_malicious_archive_is_no_backup(archive: str, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=str(tmp_path)):
        restored(tmp_path, gzip.compress(MALICIOUS[archive]))

    assert not (tmp_path / "outside").exists()


def test_any_database_of_a_backup_is_loaded_or_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with closing(sqlite3.connect(source)) as database:
        database.execute("CREATE TABLE counts (n INTEGER)")
    here = SimpleNamespace(vendor="sqlite", close=lambda: None, settings_dict={"NAME": target})
    monkeypatch.setattr(backups, "connection", here)

    def load(content: bytes) -> None:
        source.write_bytes(content)
        target.unlink(missing_ok=True)
        backups._load(source)

    fuzz("database of a backup", source.read_bytes(), only_raising(load, Rejected))
    with pytest.raises(Rejected, match="cannot be read"):
        load(b"no database" * 1_000)


def test_a_backup_that_does_not_fit_on_the_disk_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = type("Usage", (), {"free": 10})
    monkeypatch.setattr("ftdash.deployment.backups.shutil.disk_usage", lambda _: full)

    with pytest.raises(Rejected, match="has only 10 left"):
        restored(tmp_path, gzip.compress(a_backup()))
