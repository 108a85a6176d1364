"""Files and texts from outside give a value or the error that callers handle.

Each row of `PARSERS` has a parser, a valid input, and the errors that the parser may raise.
"""

import io
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pipelines.audit.file_output import batch_of
from pipelines.connectors import (
    CsvFiles,
    JsonLinesFiles,
    ParquetFiles,
    split_progress,
)
from pipelines.connectors.contract import MalformedRecord
from pipelines.connectors.files.input_files import LISTING, read_listing
from pipelines.connectors.files.quarantine import QuarantinedRecords
from pipelines.connectors.positions import Beginning
from pipelines.connectors.redis.stream_entries import row_of_fields
from pipelines.connectors.source import UnreadableText
from pipelines.connectors.split_progress import (
    NamedPositions,
    SplitPositions,
    SplitProgress,
    names_in,
    pack_of,
)
from pipelines.domain.errors import CorruptSnapshot, ProtocolError, Rejected
from pipelines.domain.ids import RunId
from pipelines.domain.log_lines import LinePlace
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.settings.parsing import parse_settings
from pipelines.packages.wheel import METADATA_BYTES_MAX, pack, read_wheel
from pipelines.runtime.master.driving import spec_of
from pipelines.storage.state_file import decoded, encoded
from pipelines.storage.trees import LocalTree
from pipelines.structured import preflight
from pipelines.structured.formats import Damaged
from pipelines.structured.recovery import SNAPSHOT_METADATA, snapshot_of
from pipelines.structured.savepoints import MANIFEST, read_savepoint
from tests.fuzzing import fuzz, only_raising

ROWS = pa.record_batch({"k": [1, 2, 3], "text": ["a", None, "c"]})
COLUMNS = pa.schema(
    [
        ("n", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("raw", pa.binary()),
    ]
)
PLAIN = pa.schema([*(COLUMNS.field(name) for name in ("n", "at", "price")), ("text", pa.string())])
ROW = b'{"n":1,"at":"2026-01-01T00:00:00Z","price":"1.50","day":"2026-01-01","raw":"YQ=="}'
PLAIN_ROW = b'{"n":1,"at":"2026-01-01T00:00:00Z","price":"1.50","text":"a","other":{"x":[1]}}\n'
WHEEL = "shop-1.0-py3-none-any.whl"
METADATA = b"Metadata-Version: 2.1\nName: shop\nVersion: 1.0\nRequires-Python: >=3.10\n"
ENTRY_POINTS = b"[ftdash.pipelines]\norders = shop:ORDERS\n"
PROJECT = (
    b'[project]\nname = "shop"\nversion = "1.0"\nrequires-python = ">=3.10"\n'
    b'[project.entry-points."ftdash.pipelines"]\norders = "shop:ORDERS"\n'
)
SPEC = RunSpec(
    run_id=RunId("counts-1"),
    pipeline="counts",
    parallelism=2,
    master="local[2]",
    parameters={"input": "/data"},
    settings={"execution.checkpointing.interval": "10 s"},
)

Read = Callable[[Path, bytes], object]
"""Reads the bytes, in a file in the directory if it reads files."""


def state_of(*, open_format: bool, compresses: bool = False) -> bytes:
    parts = encoded(ROWS.schema, [ROWS], open_format=open_format, compresses=compresses)
    return b"".join(map(bytes, parts))


def rows_of_state(name: str, _: Path, content: bytes) -> object:
    return list(decoded(name, pa.py_buffer(content)))


def written(name: str, directory: Path, content: bytes) -> Path:
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def archive_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def wheel_with(metadata: bytes = METADATA, entry_points: bytes = ENTRY_POINTS) -> bytes:
    return archive_of(
        {
            "shop/__init__.py": b"",
            "shop-1.0.dist-info/METADATA": metadata,
            "shop-1.0.dist-info/entry_points.txt": entry_points,
        }
    )


def wheel(directory: Path, content: bytes) -> object:
    return read_wheel(written(WHEEL, directory, content))


def packed_project(directory: Path, content: bytes) -> object:
    project = written("project/pyproject.toml", directory, content).parent
    written("shop/__init__.py", project, b"")
    return read_wheel(pack(project, directory))


def spec(directory: Path, content: bytes) -> object:
    run = RunDirectory.of(directory, "counts", RunId("counts-1"))
    run.path.mkdir(parents=True, exist_ok=True)
    run.spec_file.write_bytes(content)
    return spec_of(run)


def listing(directory: Path, content: bytes) -> object:
    return read_listing(written(LISTING, directory, content).parent)


def savepoint(directory: Path, content: bytes) -> object:
    return read_savepoint(LocalTree(written(MANIFEST, directory, content).parent))


def lines_of_csv(directory: Path, content: bytes) -> object:
    file = written("in.csv", directory, content)
    return list(CsvFiles([file], schema=COLUMNS).read(0, 0))


def lines_of_json(directory: Path, content: bytes) -> object:
    file = written("in.jsonl", directory, content)
    return [batch.to_pylist() for batch in JsonLinesFiles([file], schema=PLAIN).read(0, 0)]


def rows_of_parquet(directory: Path, content: bytes) -> object:
    file = written("in.parquet", directory, content)
    return list(ParquetFiles([file], schema=ROWS.schema).read(0, 0))


def quarantined(directory: Path, content: bytes) -> object:
    file = written("bad.jsonl", directory, content)
    return list(QuarantinedRecords(file, schema=COLUMNS).read(0, 0))


def settings_of(content: bytes) -> object:
    lines = content.decode(errors="replace").splitlines()
    return parse_settings(dict([*line.split("=", 1), ""][:2] for line in lines))


def bare(parse: Callable[[bytes], object]) -> Read:
    return lambda _, content: parse(content)


def of_json(convert: Callable[[object], object]) -> Read:
    def read(_: Path, content: bytes) -> object:
        try:
            stored = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # a manifest holds JSON
        return convert(stored)

    return read


Errors = tuple[type[Exception], ...]
RECORD = (MalformedRecord, Rejected)
POSITIONS = (msgspec.ValidationError,)
PLAN = {
    "format": 1,
    "spark": "4.0.0",
    "operators": [{"id": 0, "name": "dedupe", "schemas": {"default": "AAJ2Mw=="}}],
    "sources": ["kafka"],
}
SAVEPOINT = {
    "query_id": "q",
    "batch_id": 3,
    "keeps_next": True,
    "label": "before",
    "taken_ms": 1_700_000_000_000,
    "location": "/query",
    "store": "hdfs",
    "files": {"offsets/3": [5, "d1"]},
}
SETTINGS = (
    b"execution.checkpointing.interval=10 s\nstate.backend.type=rocksdb\n"
    b"restart-strategy.type=fixed-delay\nrestart-strategy.fixed-delay.attempts=3\n"
    b"taskmanager.network.memory.buffer-debloat.enabled=true\n"
)
SNAPSHOT = b'v1\n{"sstFiles":[{"localFileName":"1","dfsSstFileName":"1-a","sizeBytes":5}]}'

PARSERS: dict[str, tuple[Read, bytes, Errors]] = {
    "state in Arrow": (
        partial(rows_of_state, "a.arrow"),
        state_of(open_format=False),
        (CorruptSnapshot,),
    ),
    "state in Arrow with LZ4": (
        partial(rows_of_state, "a.arrow"),
        state_of(open_format=False, compresses=True),
        (CorruptSnapshot,),
    ),
    "state in Parquet": (
        partial(rows_of_state, "a.parquet"),
        state_of(open_format=True),
        (CorruptSnapshot,),
    ),
    "wheel": (wheel, wheel_with(), (Rejected,)),
    "metadata of a wheel": (
        lambda directory, content: wheel(directory, wheel_with(metadata=content)),
        METADATA,
        (Rejected,),
    ),
    "entry points of a wheel": (
        lambda directory, content: wheel(directory, wheel_with(entry_points=content)),
        ENTRY_POINTS,
        (Rejected,),
    ),
    "pyproject": (packed_project, PROJECT, (Rejected,)),
    "run.json": (spec, msgspec.json.encode(SPEC), (Rejected,)),
    "listing": (listing, b'[{"name":"a.csv","length":5}]', (Rejected,)),
    "Spark snapshot": (bare(snapshot_of), archive_of({SNAPSHOT_METADATA: SNAPSHOT}), (Damaged,)),
    "savepoint of a query": (savepoint, msgspec.json.encode(SAVEPOINT), (CorruptSnapshot,)),
    "explained plan": (bare(preflight.plan_of), msgspec.json.encode(PLAN), (Rejected,)),
    "CSV": (lines_of_csv, b"1,2026-01-01T00:00:00Z,1.50,2026-01-01,abc\n", RECORD),
    "JSON lines": (lines_of_json, PLAIN_ROW, RECORD),
    "Parquet": (rows_of_parquet, state_of(open_format=True), RECORD),
    "quarantine": (
        quarantined,
        msgspec.json.encode({"record": ROW.decode(), "source": "a", "operator": "b"}) + b"\n",
        RECORD,
    ),
    "entry of a Redis stream": (
        bare(lambda content: row_of_fields(content.decode(errors="replace"), COLUMNS)),
        ROW,
        (UnreadableText,),
    ),
    "output to audit": (
        bare(lambda content: batch_of(content.splitlines(), COLUMNS)),
        ROW,
        (ValueError, pa.ArrowException),
    ),
    "positions by index": (
        of_json(lambda stored: SplitPositions.from_json(stored)),
        b'{"backlog":[[0,5],[2,0]],"frontier":4,"stride":2}',
        POSITIONS,
    ),
    "positions by name": (
        of_json(lambda stored: NamedPositions.from_json(stored)),
        b'{"splits":[{"name":"a","offset":5}],"has_looked":true}',
        POSITIONS,
    ),
    "pack of names": (
        bare(lambda content: names_in(content.decode(errors="replace"))),
        pack_of(["a", "b"]).encode(),
        POSITIONS,
    ),
    "beginning of a run": (
        bare(Beginning.unpacked),
        Beginning(splits={"a": [SplitProgress("x", 3)]}).packed(),
        (ProtocolError,),
    ),
    "settings": (bare(settings_of), SETTINGS, (Rejected,)),
    "place of a log line": (
        bare(lambda content: LinePlace.parse(content.decode(errors="replace"))),
        b"3-120",
        (),
    ),
}


@pytest.mark.parametrize("parser", PARSERS)
def test_any_content_is_a_value_or_the_error_that_callers_handle(
    parser: str, tmp_path: Path
) -> None:
    read, valid, errors = PARSERS[parser]

    assert read(tmp_path, valid) is not Ellipsis
    fuzz(parser, valid, only_raising(partial(read, tmp_path), *errors))


def test_a_wheel_whose_metadata_unpacks_into_far_more_is_rejected(tmp_path: Path) -> None:
    large = {"shop-1.0.dist-info/METADATA": bytes(METADATA_BYTES_MAX + 1)}

    with pytest.raises(Rejected, match="more than"):
        wheel(tmp_path, archive_of(large, zipfile.ZIP_DEFLATED))


def test_a_pack_that_unpacks_into_far_more_is_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_of(f"file-{number}" for number in range(1_000))
    assert len(names_in(packed)) == 1_000

    monkeypatch.setattr(split_progress, "PACK_BYTES_MAX", 1_000)

    with pytest.raises(msgspec.ValidationError, match="too large"):
        names_in(packed)
