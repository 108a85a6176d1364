"""Checkpoint directories as Spark 4.3 writes them, generated from a seed and without Spark.

Names, versions and layouts match real directories. The contents of state files are realistic only
as far as the doctor can see without Spark. Every file has its checksums and the time at which a
query would have written it.
"""

import io
import json
import os
import random
import uuid
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.structured.formats import BLOCK, crc_of

PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
HDFS = f"{PROVIDERS}HDFSBackedStateStoreProvider"
ROCKSDB = f"{PROVIDERS}RocksDBStateStoreProvider"
STORES = ("hdfs", "rocksdb", "rocksdb-changelog", "rocksdb2", "rocksdb2-changelog")
OPERATORS = ("none", "stateStoreSave", "dedupe", "symmetricHashJoin", "transformWithStateExec")
JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
SOURCES = ("file", "rate", "rate-micro-batch", "kafka")
BEGIN_MS = 1_780_000_000_000


@dataclass(slots=True)
class Traits:
    """The properties of a directory. `newest` is planned; it is committed unless `is_running`."""

    store: str = "hdfs"
    operator: str = "stateStoreSave"
    sources: tuple[str, ...] = ("file",)
    oldest: int = 0
    newest: int = 12
    partitions: int = 2
    is_running: bool = False
    has_names: bool = False  # the sources have names
    has_sums: bool = True
    has_output: bool = True
    snapshot_every: int = 5
    compact_every: int = 10
    interval_ms: int = 10_000
    has_watermark: bool = True
    seed: int = 0


def traits_of(seed: int) -> Traits:
    """Chooses the properties of a healthy query."""
    chance = random.Random(seed)
    newest = chance.randint(0, 11)
    return Traits(
        store=chance.choice(STORES),
        operator=chance.choice(OPERATORS),
        sources=tuple(chance.choices(SOURCES, k=chance.randint(1, 3))),
        oldest=chance.choice((0, max(0, newest - chance.randint(0, 6)))),
        newest=newest,
        partitions=chance.randint(1, 2),
        is_running=chance.random() < 0.4 and newest > 0,
        has_names=chance.random() < 0.3,
        has_sums=chance.random() < 0.8,
        has_output=chance.random() < 0.5,
        snapshot_every=chance.randint(1, 12),
        compact_every=chance.choice((2, 3, 5, 10)),
        interval_ms=chance.choice((0, 100, 10_000, 3_600_000)),
        has_watermark=chance.random() < 0.7,
        seed=seed,
    )


@dataclass(slots=True)
class Written:
    """A directory that was made; its methods damage it as disks, people and races do."""

    checkpoint: Path
    output: Path
    traits: Traits
    planned_ms: dict[int, int] = field(default_factory=dict)

    def delete(self, path: str) -> None:
        file = self.checkpoint / path
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    def matching(self, pattern: str) -> list[str]:
        found = (str(p.relative_to(self.checkpoint)) for p in self.checkpoint.glob(pattern))
        return sorted(found)

    def cut(self, path: str, to_bytes: int) -> None:
        os.truncate(self.checkpoint / path, to_bytes)

    def rewrite(self, path: str, old: str, new: str) -> None:
        """Writes a change with checksums of the new content, as a program would."""
        file = self.checkpoint / path
        content = file.read_text()
        assert old in content
        _write(file, content.replace(old, new, 1).encode(), file.stat().st_mtime_ns // 1_000_000)

    def flip(self, path: str) -> None:
        """Flips one bit of the content; the checksums stay."""
        file = self.checkpoint / path
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        status = file.stat()
        file.write_bytes(content)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def rewind_by_hand(self, to_batch: int) -> None:
        """Does what people do: deletes the newer offsets and commits, then restarts the query."""
        for folder in ("offsets", "commits"):
            for path in self.matching(f"{folder}/[0-9]*"):
                if int(path.rpartition("/")[2]) > to_batch:
                    self.delete(path)

    def go_on(self, until: int, at_ms: int) -> None:
        """Runs the query again, from its newest batch to `until`, starting at `at_ms`."""
        first = 1 + max(int(p.rpartition("/")[2]) for p in self.matching("commits/[0-9]*"))
        for batch in range(first, until + 1):
            _plan(self, batch, at_ms + batch * 1000)
            _state(self, batch)
            _commit(self, batch)


def write_query(home: Path, traits: Traits) -> Written:
    made = Written(home / "checkpoint", home / "output", traits)
    chance = random.Random(traits.seed)
    begin_ms = BEGIN_MS
    _put(made, "metadata", json.dumps({"id": _uuid(chance)}).encode(), begin_ms)
    _describe(made, begin_ms)
    for batch in range(traits.newest + 1):
        _plan(made, batch, begin_ms + batch * max(traits.interval_ms, 1000))
        if batch == traits.newest and traits.is_running:
            if chance.random() < 0.5:
                _state(made, batch)
            break
        _state(made, batch)
        _commit(made, batch)
        _sink(made, batch)
    _purge(made)
    return made


def _purge(made: Written) -> None:
    """Deletes logs and state of batches before the oldest, as Spark does."""
    oldest = made.traits.oldest
    for folder in ("offsets", "commits"):
        for path in made.matching(f"{folder}/[0-9]*"):
            if int(path.rpartition("/")[2]) < oldest:
                made.delete(path)
    for folder in {p.rpartition("/")[0] for p in made.matching("state/**/[0-9]*.*")}:
        files = [p for p in made.matching(f"{folder}/[0-9]*") if "SSTs" not in p]
        versions = {p: int(p.rpartition("/")[2].split(".")[0].split("_")[0]) for p in files}
        wholes = [v for p, v in versions.items() if v <= oldest + 1 and _is_whole(p)]
        for path, version in versions.items():
            if wholes and version < max(wholes) and (made.checkpoint / path).exists():
                made.delete(path)


def _is_whole(path: str) -> bool:
    return path.endswith((".zip", ".snapshot"))


def _describe(made: Written, at_ms: int) -> None:
    traits = made.traits
    if traits.operator == "none":
        return
    stores = _stores(traits)
    infos: list[dict[str, object]] = [
        {"storeName": name, "numColsPrefixKey": 0, "numPartitions": traits.partitions}
        for name in stores
    ]
    body = {
        "operatorInfo": {"operatorId": 0, "operatorName": traits.operator},
        "stateStoreInfo": infos,
    }
    if traits.operator == "transformWithStateExec":
        schema = f"state/0/_stateSchema/default/0_{uuid.UUID(int=7)}"
        infos[0]["stateSchemaFilePaths"] = [f"file:{made.checkpoint}/{schema}"]
        _put(made, "state/0/_metadata/v2/0", f"v2\n{json.dumps(body)}".encode(), at_ms)
        _put(made, "state/0/_metadata/v2/9", f"v2\n{json.dumps(body)}".encode(), at_ms)
        _put(made, schema, b"v3...", at_ms)
        return
    _put(made, "state/0/_metadata/metadata", f"v1\n{json.dumps(body)}".encode(), at_ms)
    for name in stores:
        folder = "state/0/0" if name == "default" else f"state/0/0/{name}"
        _put(made, f"{folder}/_metadata/schema", schema_bytes(), at_ms)


def schema_bytes(value: str = "long") -> bytes:
    def text(content: str) -> bytes:
        return len(content).to_bytes(2, "big") + content.encode()

    def fields(name: str, kind: str) -> bytes:
        each = {"name": name, "type": kind, "nullable": True, "metadata": {}}
        return (1).to_bytes(4, "big") + text(json.dumps({"type": "struct", "fields": [each]}))

    return text("v2") + fields("k", "long") + fields("count", value)


def _stores(traits: Traits) -> tuple[str, ...]:
    return JOIN_STORES if traits.operator == "symmetricHashJoin" else ("default",)


def _plan(made: Written, batch: int, at_ms: int) -> None:
    traits = made.traits
    made.planned_ms[batch] = at_ms
    conf = {
        "spark.sql.streaming.stateStore.providerClass": HDFS if traits.store == "hdfs" else ROCKSDB,
        "spark.sql.shuffle.partitions": str(traits.partitions),
        "spark.sql.streaming.multipleWatermarkPolicy": "min",
    }
    watermark_ms = at_ms - 5_000 if traits.has_watermark and batch else 0
    head: dict[str, object] = {
        "batchWatermarkMs": watermark_ms,
        "batchTimestampMs": at_ms,
        "conf": conf,
    }
    lines = ["v1"]
    if traits.has_names:
        lines = ["v2"]
        head["sourceMetadataInfo"] = {}
    lines.append(json.dumps(head, separators=(",", ":")))
    for index, kind in enumerate(traits.sources):
        name = f"in{index}" if traits.has_names else str(index)
        offset = json.dumps(offset_of(kind, batch), separators=(",", ":"))
        lines.append(f"{name}:{offset}" if traits.has_names else offset)
        if kind == "file":
            _log(made, f"sources/{name}", batch, _source_line(batch, at_ms), at_ms)
        elif kind == "rate" and batch == 0:
            _put(made, f"sources/{name}/0", f"v1\n{at_ms}".encode(), at_ms)
    _put(made, f"offsets/{batch}", "\n".join(lines).encode(), at_ms + 5)


def offset_of(kind: str, batch: int) -> object:
    if kind == "file":
        return {"logOffset": batch}
    if kind == "rate":
        return batch
    if kind == "rate-micro-batch":
        return {"offset": (batch + 1) * 10, "timestamp": batch * 1000}
    return {"rides": {"0": batch * 100, "1": batch * 90}, "fares": {"0": batch * 10}}


def _source_line(batch: int, at_ms: int) -> str:
    path = f"file:///data/in/{batch:05}.json"
    return json.dumps({"path": path, "timestamp": at_ms - 100, "batchId": batch})


def _log(made: Written, folder: str, number: int, line: str, at_ms: int) -> None:
    """Writes a line of a log, in a plain file or in a compact one with all lines before it."""
    root = made.output if folder == "_spark_metadata" else made.checkpoint
    if (number + 1) % made.traits.compact_every:
        _write(root / folder / str(number), f"v1\n{line}".encode(), at_ms, made.traits.has_sums)
        return
    before: list[str] = []
    for earlier in range(number):
        plain, compact = root / folder / str(earlier), root / folder / f"{earlier}.compact"
        if compact.exists():
            before = compact.read_text().split("\n")[1:]
        elif plain.exists():
            before += plain.read_text().split("\n")[1:]
    content = "\n".join(("v1", *before, line)).encode()
    _write(root / folder / f"{number}.compact", content, at_ms, made.traits.has_sums)


def _commit(made: Written, batch: int) -> None:
    traits, at_ms = made.traits, made.planned_ms[batch] + 400
    body: dict[str, object] = {"nextBatchWatermarkMs": at_ms - 5_000}
    version = "v1"
    if traits.store.startswith("rocksdb2") and traits.operator != "none":
        version = "v2"
        body["stateUniqueIds"] = {
            "0": [
                [_unique_id(made, batch, partition, store) for store in _stores(traits)]
                for partition in range(traits.partitions)
            ]
        }
    elif traits.seed % 5 == 4:
        version = "v3"
        body["sinkMetadataMap"] = {}
    _put(made, f"commits/{batch}", f"{version}\n{json.dumps(body)}".encode(), at_ms)


def _unique_id(made: Written, batch: int, partition: int, store: str) -> str:
    return str(uuid.uuid5(uuid.UUID(int=made.traits.seed), f"{batch}/{partition}/{store}"))


def _state(made: Written, batch: int) -> None:
    traits, version = made.traits, batch + 1
    at_ms = made.planned_ms[batch] + 200
    if traits.operator == "none":
        return
    for partition in range(traits.partitions):
        for store in _stores(traits):
            folder = f"state/0/{partition}" + ("" if store == "default" else f"/{store}")
            is_whole = version % traits.snapshot_every == 0
            name = str(version)
            if traits.store.startswith("rocksdb2"):
                name = f"{version}_{_unique_id(made, batch, partition, store)}"
            if traits.store == "hdfs":
                _put(made, f"{folder}/{name}.delta", state_bytes(30 + batch), at_ms)
                if is_whole:
                    content = state_bytes(600 + 10 * batch)
                    _put(made, f"{folder}/{name}.snapshot", content, at_ms + 100)
                continue
            if traits.store.endswith("changelog"):
                _put(made, f"{folder}/{name}.changelog", state_bytes(50), at_ms)
            if is_whole or not traits.store.endswith("changelog"):
                _rocksdb_snapshot(made, folder, name, at_ms)


def state_bytes(length: int) -> bytes:
    """Returns a stream of Spark's LZ4: a block, and the empty block that ends it."""
    return (
        BLOCK
        + b"\x15"
        + bytes(range(256)) * (length // 256)
        + bytes(length % 256)
        + (BLOCK + b"\x15" + bytes(12))
    )


def _rocksdb_snapshot(made: Written, folder: str, name: str, at_ms: int) -> None:
    sst = f"000008-{uuid.uuid5(uuid.UUID(int=made.traits.seed), folder + name)}.sst"
    _put(made, f"{folder}/SSTs/{sst}", b"sst" * 40, at_ms)
    held = io.BytesIO()
    described = {
        "sstFiles": [{"localFileName": "000008.sst", "dfsSstFileName": sst, "sizeBytes": 120}],
        "numKeys": 2,
    }
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        archive.writestr("metadata", f"v1\n{json.dumps(described)}")
    _put(made, f"{folder}/{name}.zip", held.getvalue(), at_ms)
    if made.traits.store.startswith("rocksdb2"):
        sums = {"algorithm": "CRC32C", "value": 1, "mainFileSize": len(held.getvalue())}
        _put(made, f"{folder}/{name}.zip.crc", json.dumps(sums).encode(), at_ms)


def _sink(made: Written, batch: int) -> None:
    if not made.traits.has_output:
        return
    at_ms = made.planned_ms[batch] + 300
    file = made.output / f"part-{batch:05}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"batch": batch}))
    line = {
        "path": f"file://{file}",
        "size": file.stat().st_size,
        "isDir": False,
        "modificationTime": at_ms,
        "blockReplication": 1,
        "blockSize": 1,
        "action": "add",
    }
    _log(made, "_spark_metadata", batch, json.dumps(line), at_ms)


def _put(made: Written, path: str, content: bytes, at_ms: int) -> None:
    _write(made.checkpoint / path, content, at_ms, made.traits.has_sums)


def _write(path: Path, content: bytes, at_ms: int, has_sums: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sums = path.with_name(f".{path.name}.crc")
    path.write_bytes(content)
    if has_sums:
        sums.write_bytes(crc_of(content))
    for file in (path, sums) if has_sums else (path,):
        os.utime(file, (at_ms / 1000, at_ms / 1000))


def _uuid(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))
