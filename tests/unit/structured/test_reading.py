"""Reading a directory: its contents, what is no checkpoint, and changes during the reading."""

import json
from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected
from pipelines.storage.trees import LocalTree, tree_at
from pipelines.structured.directory import read_query, read_tree
from pipelines.structured.doctor import examine
from pipelines.structured.formats import SourceKind
from pipelines.structured.query import QueryDirectory, Store
from pipelines.structured.recovery import recovery_points
from tests.structured_directories import Traits, Written, write_query


def test_the_reader_finds_batches_sources_and_state(tmp_path: Path) -> None:
    traits = Traits(sources=("file", "kafka", "rate-micro-batch", "rate"), is_running=True)
    made = write_query(tmp_path, traits)

    query = read(made)

    batch = query.batches[3]
    assert [b.batch_id for b in query.batches] == list(range(13))
    assert query.query_id == json.loads((made.checkpoint / "metadata").read_text())["id"]
    assert (batch.is_committed, batch.planned_ms) == (True, made.planned_ms[3])
    assert (batch.shuffle_partitions, batch.store_class.rpartition(".")[2]) == (
        2,
        "HDFSBackedStateStoreProvider",
    )
    assert [(each.kind, dict(each.positions)) for each in batch.sources] == [
        (SourceKind.FILE, {"logOffset": 3}),
        (SourceKind.KAFKA, {"rides-0": 300, "rides-1": 270, "fares-0": 30}),
        (SourceKind.RATE, {"offset": 40}),
        (SourceKind.RATE, {"seconds": 3}),
    ]
    assert not query.batches[-1].is_committed
    assert (query.newest_planned, query.newest_committed) == (12, 11)
    operator = query.operators[0]
    assert (operator.name, operator.partition_count) == ("stateStoreSave", 2)
    assert operator.newest_snapshot_version == 10
    assert operator.bytes_by_version[1] == sum(
        (made.checkpoint / f"state/0/{partition}/1.delta").stat().st_size for partition in (0, 1)
    )
    log = query.log_of(batch.sources[0])
    assert log is not None
    assert (log.newest, log.compact_numbers) == (12, (9,))
    assert query.sink_log is not None
    assert query.sink_log.newest == 11
    assert query.output_files == 12


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("hdfs", Store.HDFS),
        ("rocksdb", Store.ROCKSDB),
        ("rocksdb-changelog", Store.ROCKSDB),
        ("rocksdb2", Store.ROCKSDB_UNIQUE),
        ("rocksdb2-changelog", Store.ROCKSDB_UNIQUE),
    ],
)
def test_the_reader_recognises_the_kind_of_state_store(
    tmp_path: Path, store: str, kind: Store
) -> None:
    query = read(write_query(tmp_path, Traits(store=store)))

    assert query.store is kind
    assert all(point.is_complete for point in recovery_points(query))


def test_sources_with_names_have_logs_by_name(tmp_path: Path) -> None:
    query = read(write_query(tmp_path, Traits(has_names=True, sources=("file", "rate"))))

    sources = query.batches[-1].sources
    assert [source.name for source in sources] == ["in0", "in1"]
    assert [query.log_of(source) is not None for source in sources] == [True, True]


def test_the_oldest_kept_batch_is_no_recovery_point(tmp_path: Path) -> None:
    query = read(write_query(tmp_path, Traits(oldest=4)))

    points = recovery_points(query)

    assert [p.batch_id for p in points if not p.is_complete] == [4]
    assert "offsets/3" in points[0].problems[0]
    assert examine(query) == ()


def test_the_reader_opens_at_most_the_requested_number_of_batches(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits(has_output=False))
    opened: list[str] = []

    class Counted(LocalTree):
        def read(self, path: str) -> bytes | None:
            opened.append(path)
            return super().read(path)

    query = read_tree(Counted(made.checkpoint), opened_batches_max=2)

    assert sorted(path for path in opened if path[0] in "oc") == [
        *("commits/11", "commits/12", "offsets/11", "offsets/12")
    ]
    assert [batch.is_opened for batch in query.batches] == [False] * 11 + [True] * 2
    assert query.batches[0].planned_ms is not None
    assert examine(query) == ()


def test_a_batch_that_is_planned_during_the_listing_is_no_finding(tmp_path: Path) -> None:
    """The reader lists state before offsets, whatever order the storage uses."""
    made = write_query(tmp_path, Traits(newest=5, has_output=False))
    later = write_query(tmp_path / "later", Traits(newest=9, has_output=False))

    class Moving(LocalTree):
        def files(self, below: str = ""):  # type: ignore[no-untyped-def]
            listed = list(super().files(below))
            for file in later.matching("**/*") if not below else ():
                target = made.checkpoint / file
                if (later.checkpoint / file).is_file() and not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes((later.checkpoint / file).read_bytes())
            return iter(listed)

    query = read_tree(Moving(made.checkpoint))

    assert query.newest_planned == 9
    kinds = [each.kind.value for each in examine(query)]
    assert "abandoned-state" not in kinds


def test_a_directory_that_is_no_checkpoint_is_refused_with_a_hint(tmp_path: Path) -> None:
    made = write_query(tmp_path / "jobs" / "rides", Traits())
    root = str(tmp_path)

    with pytest.raises(Rejected, match=r"no checkpoint.*Did you mean .*rides/checkpoint\?"):
        read_query(str(tmp_path / "jobs"), [root])
    with pytest.raises(Rejected, match="empty or does not exist"):
        read_query(str(tmp_path / "nothing"), [root])
    with pytest.raises(Rejected, match="outside the configured storage"):
        read_query(str(made.checkpoint), [str(tmp_path / "elsewhere")])


def test_no_link_leads_out_of_the_directory(tmp_path: Path) -> None:
    made = write_query(tmp_path / "inside", Traits())
    secret = tmp_path / "secret"
    secret.write_text("v1\n{}")
    (made.checkpoint / "offsets" / "13").symlink_to(secret)
    (made.checkpoint / "state" / "1").symlink_to(tmp_path)

    query = read(made)

    assert query.newest_planned == 12
    assert [operator.operator_id for operator in query.operators] == [0]
    tree = tree_at(str(made.checkpoint), [str(tmp_path)])
    assert [tree.read(path) for path in ("offsets/13", "state/1/secret")] == [None, None]
    assert list(tree.files("state/1")) == []
    with pytest.raises(Rejected, match="no name of a file"):
        tree.read("../secret")
    with pytest.raises(Rejected, match="behind a symbolic link"):
        tree.write_new("state/1/new", b"")


def read(made: Written) -> QueryDirectory:
    output = str(made.output) if made.traits.has_output else ""
    return read_query(str(made.checkpoint), [str(made.checkpoint.parents[1])], output=output)
