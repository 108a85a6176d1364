"""The doctor names each staged damage and finds nothing in healthy directories."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pipelines.storage.trees import tree_at
from pipelines.structured.directory import read_query
from pipelines.structured.doctor import Observed, examine
from pipelines.structured.findings import MEANINGS, Kind
from pipelines.structured.recovery import verify
from tests.structured_directories import Traits, Written, traits_of, write_query

DAY_MS = 86_400_000


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_the_doctor_finds_nothing_in_healthy_directories(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 20):
        home = tmp_path / str(seed)
        made = write_query(home, traits_of(seed))

        found = look(made)

        assert found == [], (seed, made.traits)
        shutil.rmtree(home)


@dataclass(frozen=True)
class Damage:
    """`stage` causes the damage; `kinds` are its possible findings. The first must appear."""

    name: str
    stage: Callable[[Written], object]
    kinds: tuple[Kind, ...]
    traits: Traits = field(default_factory=Traits)
    observed: Observed = field(default_factory=Observed)


def damage(name, stage, *kinds, observed=None, **traits) -> Damage:
    return Damage(name, stage, kinds, replace(Traits(), **traits), observed or Observed())


def wide(made: Written) -> None:
    """Grows a log to 65 MiB as a file with a hole."""
    file = made.checkpoint / "sources/0/9.compact"
    with open(file, "r+b") as opened:
        opened.truncate(65 << 20)


def grow(made: Written) -> None:
    for path in made.matching("state/0/*/10.snapshot"):
        (made.checkpoint / path).with_name(".10.snapshot.crc").unlink()
        with open(made.checkpoint / path, "r+b") as opened:
            opened.truncate(40 << 20)


def many_files(made: Written) -> None:
    for number in range(1001):
        (made.output / f"small-{number}.json").touch()


def still(made: Written) -> None:
    for batch in range(1, 41):
        planned = made.planned_ms[batch]
        made.rewrite(
            f"offsets/{batch}",
            f'"batchWatermarkMs":{planned - 5000}',
            f'"batchWatermarkMs":{made.planned_ms[1]}',
        )


def mixed(made: Written) -> None:
    """Rewinds to batch 2 and runs again past the snapshot of the abandoned timeline."""
    made.rewind_by_hand(2)
    made.go_on(12, made.planned_ms[12] + DAY_MS)
    for path in made.matching("state/0/*/5.delta"):
        stale = made.checkpoint / path.replace("delta", "snapshot")
        at_s = made.planned_ms[2] / 1000 + 20
        stale.touch()
        os.utime(stale, (at_s, at_s))


DAMAGES = [
    damage("metadata is gone", lambda m: m.delete("metadata"), Kind.METADATA_MISSING),
    damage("metadata is torn", lambda m: m.cut("metadata", 9), Kind.METADATA_DAMAGED),
    damage("metadata is empty", lambda m: m.cut("metadata", 0), Kind.METADATA_DAMAGED),
    damage(
        "all offsets are gone",
        lambda m: shutil.rmtree(m.checkpoint / "offsets"),
        Kind.OFFSETS_MISSING,
    ),
    damage(
        "all commits are gone",
        lambda m: shutil.rmtree(m.checkpoint / "commits"),
        Kind.COMMITS_MISSING,
    ),
    damage("gap in offsets", lambda m: m.delete("offsets/7"), Kind.OFFSETS_GAP),
    damage("gap in commits", lambda m: m.delete("commits/7"), Kind.COMMITS_GAP),
    damage(
        "newest offset is gone",
        lambda m: m.delete("offsets/12"),
        Kind.COMMIT_WITHOUT_OFFSET,
        Kind.ABANDONED_STATE,
        Kind.SINK_LOG_AHEAD,
    ),
    damage(
        "two newest commits are gone",
        lambda m: [m.delete(f"commits/{n}") for n in (11, 12)],
        Kind.SEVERAL_UNCOMMITTED,
    ),
    damage(
        "a batch hangs",
        lambda m: None,
        Kind.BATCH_STUCK,
        is_running=True,
        observed=Observed(now_ms=1_780_000_000_000 + DAY_MS),
    ),
    damage("an offset is empty", lambda m: m.cut("offsets/12", 0), Kind.LOG_FILE_EMPTY),
    damage("an offset is torn", lambda m: m.cut("offsets/6", 90), Kind.LOG_FILE_TORN),
    damage(
        "an offset ends before its sources",
        lambda m: m.rewrite("offsets/6", '\n{"logOffset":6}', ""),
        Kind.LOG_FILE_TORN,
    ),
    damage("a commit is torn", lambda m: m.cut("commits/12", 9), Kind.LOG_FILE_TORN),
    damage("a commit is empty", lambda m: m.cut("commits/3", 0), Kind.LOG_FILE_EMPTY),
    damage(
        "an offset of a later Spark",
        lambda m: m.rewrite("offsets/6", "v1", "v9"),
        Kind.UNKNOWN_VERSION,
    ),
    damage(
        "a bit of an offset flips",
        lambda m: m.flip("offsets/12"),
        Kind.CHECKSUM_MISMATCH,
        Kind.LOG_FILE_TORN,
        Kind.STORE_CHANGED,
        Kind.PARTITIONS_SETTING_CHANGED,
    ),
    damage(
        "a bit of a delta flips", lambda m: m.flip("state/0/1/12.delta"), Kind.CHECKSUM_MISMATCH
    ),
    damage(
        "a bit of a snapshot of RocksDB flips",
        lambda m: m.flip(m.matching("state/0/1/13*.zip")[0]),
        Kind.CHECKSUM_MISMATCH,
        store="rocksdb",
    ),
    damage(
        "a snapshot of RocksDB is torn, and nothing has sums",
        lambda m: m.cut("state/0/1/13.zip", 60),
        Kind.STATE_FILE_DAMAGED,
        store="rocksdb",
        has_sums=False,
    ),
    damage(
        "an SST file is gone",
        lambda m: [m.delete(p) for p in m.matching("state/0/1/SSTs/0*")],
        Kind.STATE_FILE_DAMAGED,
        store="rocksdb",
    ),
    damage(
        "an SST file is short, and nothing has sums",
        lambda m: [m.cut(p, 7) for p in m.matching("state/0/1/SSTs/0*")],
        Kind.STATE_FILE_DAMAGED,
        store="rocksdb2",
        has_sums=False,
    ),
    damage(
        "a snapshot is not as long as Spark's sum says",
        lambda m: m.rewrite(
            m.matching("state/0/0/13_*.zip.crc")[0], "mainFileSize", 'mainFileSize": 5, "x'
        ),
        Kind.STATE_FILE_DAMAGED,
        store="rocksdb2",
    ),
    damage(
        "a delta is cut off",
        lambda m: m.cut("state/0/1/12.delta", 11),
        Kind.STATE_FILE_DAMAGED,
        has_sums=False,
    ),
    damage(
        "a delta is empty",
        lambda m: m.cut("state/0/1/13.delta", 0),
        Kind.STATE_FILE_DAMAGED,
        Kind.NEWEST_STATE_MISSING,
    ),
    damage(
        "a state is shorter than its sums",
        lambda m: m.cut("state/0/0/5.snapshot", 20),
        Kind.STATE_FILE_DAMAGED,
    ),
    damage(
        "operator metadata is gone",
        lambda m: m.delete("state/0/_metadata/metadata"),
        Kind.OPERATOR_UNREADABLE,
    ),
    damage(
        "operator metadata is torn",
        lambda m: m.cut("state/0/_metadata/metadata", 30),
        Kind.OPERATOR_UNREADABLE,
    ),
    damage(
        "a schema is gone", lambda m: m.delete("state/0/0/_metadata/schema"), Kind.SCHEMA_MISSING
    ),
    damage(
        "a partition is gone",
        lambda m: shutil.rmtree(m.checkpoint / "state/0/1"),
        Kind.PARTITION_MISSING,
        Kind.NEWEST_STATE_MISSING,
        Kind.STATE_MISSING,
    ),
    damage(
        "a store of a join is gone",
        lambda m: shutil.rmtree(m.checkpoint / "state/0/1/right-keyToNumValues"),
        Kind.PARTITION_MISSING,
        Kind.NEWEST_STATE_MISSING,
        Kind.STATE_MISSING,
        operator="symmetricHashJoin",
    ),
    damage(
        "a partition too many",
        lambda m: shutil.copytree(m.checkpoint / "state/0/1", m.checkpoint / "state/0/2"),
        Kind.PARTITION_EXTRA,
    ),
    damage(
        "newest delta is gone", lambda m: m.delete("state/0/0/13.delta"), Kind.NEWEST_STATE_MISSING
    ),
    damage("a delta within is gone", lambda m: m.delete("state/0/0/8.delta"), Kind.STATE_MISSING),
    damage(
        "a changelog is gone",
        lambda m: m.delete("state/0/0/8.changelog"),
        Kind.STATE_MISSING,
        store="rocksdb-changelog",
    ),
    damage(
        "a snapshot with an id is gone",
        lambda m: m.delete(m.matching("state/0/0/8_*.zip")[0]),
        Kind.STATE_MISSING,
        store="rocksdb2",
    ),
    damage(
        "state of another attempt is there, that of the commit is not",
        lambda m: shutil.move(
            m.checkpoint / m.matching("state/0/0/13_*.zip")[0],
            m.checkpoint / "state/0/0/13_other.zip",
        ),
        Kind.NEWEST_STATE_MISSING,
        Kind.STATE_FILE_DAMAGED,
        store="rocksdb2",
    ),
    damage(
        "no snapshots for long", lambda m: None, Kind.LONG_RESTORE, newest=60, snapshot_every=100
    ),
    damage(
        "rewound by hand",
        lambda m: m.rewind_by_hand(4),
        Kind.ABANDONED_STATE,
        Kind.SOURCE_LOG_AHEAD,
        Kind.SINK_LOG_AHEAD,
    ),
    damage(
        "rewound by hand, on RocksDB",
        lambda m: m.rewind_by_hand(4),
        Kind.ABANDONED_STATE,
        Kind.SOURCE_LOG_AHEAD,
        Kind.SINK_LOG_AHEAD,
        store="rocksdb-changelog",
    ),
    damage("rewound by hand, and run again", mixed, Kind.MIXED_TIMELINES, has_sums=False),
    damage(
        "partitions in the checkpoint edited",
        lambda m: [
            m.rewrite(f"offsets/{n}", 'partitions":"2"', 'partitions":"4"') for n in range(13)
        ],
        Kind.PARTITIONS_DIFFER,
    ),
    damage(
        "partitions changed on the way",
        lambda m: m.rewrite("offsets/12", 'partitions":"2"', 'partitions":"4"'),
        Kind.PARTITIONS_SETTING_CHANGED,
        Kind.PARTITIONS_DIFFER,
    ),
    damage(
        "session sets other partitions",
        lambda m: None,
        Kind.PARTITIONS_SETTING_IGNORED,
        observed=Observed(session_shuffle_partitions=200),
    ),
    damage(
        "store changed on the way",
        lambda m: m.rewrite(
            "offsets/12", "HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"
        ),
        Kind.STORE_CHANGED,
    ),
    damage(
        "a commit names no ids",
        lambda m: m.rewrite("commits/12", "stateUniqueIds", "stateUniqueIdz"),
        Kind.UNIQUE_IDS_MISSING,
        store="rocksdb2",
    ),
    damage("state grows", grow, Kind.STATE_GROWS, Kind.STATE_FILE_DAMAGED),
    damage(
        "a source more",
        lambda m: m.rewrite("offsets/12", '{"logOffset":12}', '{"logOffset":12}\n0'),
        Kind.SOURCES_CHANGED,
    ),
    damage(
        "another source in its place",
        lambda m: m.rewrite("offsets/12", '{"logOffset":12}', '{"rides":{"0":5}}'),
        Kind.SOURCES_CHANGED,
    ),
    damage(
        "Kafka goes back",
        lambda m: m.rewrite("offsets/12", '"0":1200', '"0":700'),
        Kind.OFFSETS_BACKWARDS,
        sources=("kafka",),
    ),
    damage(
        "log of the source is gone",
        lambda m: shutil.rmtree(m.checkpoint / "sources"),
        Kind.SOURCE_LOG_MISSING,
    ),
    damage(
        "newest entry of the source's log is gone",
        lambda m: m.delete("sources/0/12"),
        Kind.SOURCE_LOG_MISSING,
    ),
    damage("gap in the source's log", lambda m: m.delete("sources/0/11"), Kind.SOURCE_LOG_GAP),
    damage("source's log is large", wide, Kind.SOURCE_LOG_LARGE),
    damage(
        "Kafka no longer has it",
        lambda m: None,
        Kind.SOURCE_LOST,
        sources=("kafka",),
        observed=Observed(source_bounds={0: {"rides-0": (450, 5000)}}),
    ),
    damage(
        "the topic was created again",
        lambda m: None,
        Kind.SOURCE_RESET,
        sources=("kafka",),
        observed=Observed(source_bounds={0: {"rides-0": (0, 10)}}),
    ),
    damage(
        "gap in the sink's log",
        lambda m: (m.output / "_spark_metadata/11").unlink(),
        Kind.SINK_LOG_GAP,
    ),
    damage("many small files", many_files, Kind.SMALL_FILES),
    damage(
        "clock went back",
        lambda m: m.rewrite(
            "offsets/12", f'TimestampMs":{1_780_000_120_000}', f'TimestampMs":{1_780_000_090_000}'
        ),
        Kind.TIME_BACKWARDS,
    ),
    damage(
        "watermark goes back",
        lambda m: m.rewrite(
            "offsets/12", 'batchWatermarkMs":1780000115000', 'batchWatermarkMs":1780000015000'
        ),
        Kind.WATERMARK_BACKWARDS,
    ),
    damage(
        "watermark stands still", still, Kind.WATERMARK_STANDS_STILL, newest=40, interval_ms=60_000
    ),
    damage(
        "batches are slow",
        lambda m: None,
        Kind.SLOW_BATCHES,
        observed=Observed(trigger_interval_ms=100),
    ),
    damage(
        "late rows",
        lambda m: None,
        Kind.ROWS_DROPPED,
        observed=Observed(rows_dropped={"dedupe": 7}),
    ),
    damage("a write that did not end", lambda m: unfinished(m), Kind.LEFTOVER_FILES),
    damage(
        "a stranger",
        lambda m: (m.checkpoint / "offsets/notes.txt").write_text("x"),
        Kind.STRANGE_FILES,
    ),
]


def unfinished(made: Written) -> None:
    file = made.checkpoint / "offsets/.5.0f0e.tmp"
    file.write_text("half")
    os.utime(file, (1_700_000_000, 1_700_000_000))


@pytest.mark.parametrize("each", DAMAGES, ids=lambda each: each.name)
def test_the_doctor_names_a_staged_damage(tmp_path: Path, each: Damage) -> None:
    made = write_query(tmp_path, each.traits)
    assert not each.observed.now_ms or look(made) == []

    each.stage(made)
    found = {Kind(kind) for kind in look(made, each.observed)}

    assert each.kinds[0] in found
    assert found <= set(each.kinds)


def test_the_staged_damages_cover_nearly_all_kinds_of_finding() -> None:
    named = {each.kinds[0] for each in DAMAGES}

    assert len(named) >= 30
    assert MEANINGS.keys() == set(Kind)
    assert set(Kind) - named == {Kind.SINK_LOG_LARGE, Kind.SOURCE_LOG_AHEAD, Kind.SINK_LOG_AHEAD}


def look(made: Written, observed: Observed | None = None) -> list[str]:
    """Examines as a page does: the listing, the bytes of the newest committed batch, findings."""
    root = str(made.checkpoint.parent)
    output = str(made.output) if made.traits.has_output else ""
    query = read_query(str(made.checkpoint), [root], output=output)
    checked = [b for b in query.batches if b.is_committed and b.offset_file][-1:]
    problems = [
        problem
        for batch in checked
        for problem in verify(tree_at(query.location, [root]), query, batch).problems
    ]
    seen = replace(observed or Observed(), file_problems=tuple(problems))
    return [each.kind for each in examine(query, seen)]
