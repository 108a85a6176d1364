"""Savepoints and forks: what they contain, what they never contain, and when they are refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.storage.trees import LocalTree, Tree, tree_at
from pipelines.structured.directory import read_tree
from pipelines.structured.doctor import examine
from pipelines.structured.fork import (
    Boundaries,
    ForkRequest,
    begin_output,
    fork,
    rewind_output,
)
from pipelines.structured.formats import SourceKind, StateSchema, log_entries_of
from pipelines.structured.preflight import (
    Check,
    ForkVerdict,
    Outcome,
    Output,
    PlanDescription,
    PlannedOperator,
    Question,
    preflight,
)
from pipelines.structured.query import QueryDirectory
from pipelines.structured.savepoints import (
    SavepointManifest,
    SavepointRequest,
    read_savepoint,
    take_savepoint,
    verify_savepoint,
)
from tests.structured_directories import OPERATORS, STORES, Traits, Written, write_query

DAY_MS = 86_400_000


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("store", STORES)
def test_a_fork_holds_one_batch_and_nothing_later(
    tmp_path: Path, store: str, operator: str
) -> None:
    made = write_query(tmp_path, Traits(store=store, operator=operator, is_running=True))
    before = contents(made.checkpoint)

    done = forked(made, tmp_path / "fork", ForkRequest(batch_id=7))

    copied = read_tree(LocalTree(tmp_path / "fork"))
    assert (copied.newest_planned, copied.newest_committed) == (7, 7)
    assert done.query_id == copied.query_id != done.from_query_id
    versions = {v for o in copied.operators for p in o.partitions for v in p.files}
    assert max(versions, default=8) == 8
    assert len(copied.operators) == (operator != "none")
    assert examine(copied) == ()
    assert contents(made.checkpoint) == before


def test_the_log_of_a_file_source_ends_where_the_batch_ends(tmp_path: Path) -> None:
    """Otherwise the later files count as seen, and one batch takes all of them."""
    for newest, batch in ((12, 7), (25, 9), (25, 20), (5, 0), (40, 31)):
        for every in (2, 3, 10):
            home = tmp_path / f"{newest}-{batch}-{every}"
            traits = Traits(newest=newest, compact_every=every, operator="none", has_output=False)
            made = write_query(home, traits)

            forked(made, home / "fork", ForkRequest(batch_id=batch))

            assert logged(home / "fork/sources/0") == list(range(batch + 1))
            assert examine(read_tree(LocalTree(home / "fork"))) == ()


def test_a_fork_refers_to_its_own_schema_files_and_to_no_later_batch(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits(store="rocksdb", operator="transformWithStateExec"))

    saved(made, tmp_path / "savepoint")
    tree = LocalTree(tmp_path / "savepoint")
    fork(tree, read_tree(tree), LocalTree(tmp_path / "fork"), ForkRequest(batch_id=7))

    assert [p.name for p in (tmp_path / "fork/state/0/_metadata/v2").glob("[0-9]*")] == ["0"]
    described = (tmp_path / "fork/state/0/_metadata/v2/0").read_text()
    address = json.loads(described.split("\n")[1])["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert address[0].startswith(f"file://{tmp_path}/fork/state/0/_stateSchema/default/0_")
    assert Path(address[0].removeprefix("file://")).exists()


def test_the_same_boundaries_keep_the_plan_of_the_next_batch(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits())

    forked(made, tmp_path / "fork", ForkRequest(batch_id=7, boundaries=Boundaries.SAME))

    copied = read_tree(LocalTree(tmp_path / "fork"))
    assert (copied.newest_planned, copied.newest_committed) == (8, 7)
    assert logged(tmp_path / "fork/sources/0") == list(range(9))
    with pytest.raises(Rejected, match="Batch 13 was not planned"):
        forked(made, tmp_path / "late", ForkRequest(batch_id=12, boundaries=Boundaries.SAME))
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize(
    ("batch_id", "message"),
    [
        (99, "has no batch 99; it keeps 3 to 11"),
        (12, "planned and not committed"),
        (3, "offsets/2, which a restart reads as well"),
    ],
)
def test_a_batch_that_cannot_be_restored_is_not_forked(
    tmp_path: Path, batch_id: int, message: str
) -> None:
    made = write_query(tmp_path, Traits(oldest=3, is_running=True))

    with pytest.raises(Rejected, match=message):
        forked(made, tmp_path / "fork", ForkRequest(batch_id=batch_id))


def test_a_damaged_batch_leaves_no_half_fork(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits())
    made.flip("state/0/1/8.delta")

    with pytest.raises(Rejected, match=r"state/0/1/8\.delta differs from its checksum"):
        forked(made, tmp_path / "fork", ForkRequest(batch_id=7))
    assert not (tmp_path / "fork").exists()


def test_a_fork_refuses_a_target_that_holds_files(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits())
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork/mine.txt").write_text("kept")

    with pytest.raises(Rejected, match="holds files already"):
        forked(made, tmp_path / "fork", ForkRequest(batch_id=7))
    assert (tmp_path / "fork/mine.txt").read_text() == "kept"


def test_a_fork_writes_nothing_into_or_around_the_original(tmp_path: Path) -> None:
    made = write_query(tmp_path / "home", Traits())
    before = contents(made.checkpoint)

    for place in (made.checkpoint / "fork", made.checkpoint, tmp_path / "home"):
        with pytest.raises(Rejected, match="lie within each other"):
            forked(made, place, ForkRequest(batch_id=7))
        tree, query = look(made)
        request = ForkRequest(batch_id=7)
        question = Question(request=request, output=Output.NEW, begins_output=True)
        assert refusals(preflight(tree, query, LocalTree(place), question)) == [Check.TARGET]
    with pytest.raises(Rejected, match="lie within each other"):
        rewind_output(query, LocalTree(made.output), LocalTree(made.output / "again"), 7)

    assert contents(made.checkpoint) == before


def test_a_purge_during_the_copy_is_refused_and_nothing_remains(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits())
    reads: dict[str, int] = {}

    class Purged(LocalTree):
        def read(self, path: str) -> bytes | None:
            reads[path] = reads.get(path, 0) + 1
            return None if path == "commits/7" and reads[path] > 1 else super().read(path)

    query = read_tree(LocalTree(made.checkpoint))
    with pytest.raises(Rejected, match="purged during the copy; choose a newer batch"):
        fork(
            Purged(made.checkpoint),
            query,
            LocalTree(tmp_path / "fork"),
            ForkRequest(batch_id=7),
        )
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize("store", STORES)
def test_a_savepoint_outlives_its_query_and_can_be_forked(tmp_path: Path, store: str) -> None:
    made = write_query(tmp_path, Traits(store=store, is_running=True))

    manifest = saved(made, tmp_path / "savepoint", keeps_next=True)
    for path in made.matching("**/*"):
        if (made.checkpoint / path).is_file():
            (made.checkpoint / path).unlink()

    tree = LocalTree(tmp_path / "savepoint")
    assert read_savepoint(tree) == manifest
    assert (manifest.batch_id, manifest.label) == (7, "before the deploy")
    assert verify_savepoint(tree) == ()
    assert examine(read_tree(tree)) == ()
    for boundaries in Boundaries:
        request = ForkRequest(batch_id=7, boundaries=boundaries)
        target = LocalTree(tmp_path / f"fork-{boundaries}")
        done = fork(tree, read_tree(tree), target, request)
        assert done.query_id != manifest.query_id
        assert read_tree(target).newest_planned == (8 if boundaries is Boundaries.SAME else 7)


def test_an_altered_savepoint_is_detected_and_not_forked(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits(has_sums=False))
    saved(made, tmp_path / "savepoint")
    tree = LocalTree(tmp_path / "savepoint")
    altered = tmp_path / "savepoint/commits/7"
    altered.write_text(altered.read_text().replace("nextBatch", "nextbatch"))
    (tmp_path / "savepoint/state/0/0/8.delta").unlink()

    problems = verify_savepoint(tree)

    assert [text.rpartition("/")[2] for text in sorted(problems)] == [
        "7 has been altered.",
        "8.delta is missing.",
    ]
    with pytest.raises(Rejected, match="The savepoint cannot be used"):
        fork(tree, read_tree(tree), LocalTree(tmp_path / "fork"), ForkRequest(batch_id=7))


def test_a_savepoint_without_its_manifest_does_not_count_as_one(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits())
    saved(made, tmp_path / "savepoint")
    (tmp_path / "savepoint/savepoint.json").unlink()

    with pytest.raises(CorruptSnapshot, match="is no savepoint"):
        verify_savepoint(LocalTree(tmp_path / "savepoint"))


@pytest.mark.parametrize(("newest", "batch", "every"), [(12, 7, 10), (12, 11, 3), (25, 13, 10)])
def test_an_output_is_rewound_with_its_log(
    tmp_path: Path, newest: int, batch: int, every: int
) -> None:
    made = write_query(tmp_path, Traits(newest=newest, compact_every=every))
    query = read_tree(LocalTree(made.checkpoint), LocalTree(made.output))

    copied = rewind_output(query, LocalTree(made.output), LocalTree(tmp_path / "rewound"), batch)

    wanted = [f"part-{n:05}.json" for n in range(batch + 1)]
    assert sorted(copied) == wanted
    assert sorted(p.name for p in (tmp_path / "rewound").glob("part-*")) == wanted
    lines = log_lines(tmp_path / "rewound/_spark_metadata")
    assert sorted(line["path"] for line in lines) == [
        f"file://{tmp_path}/rewound/{name}" for name in wanted
    ]
    newest_name = max(
        (p.name for p in (tmp_path / "rewound/_spark_metadata").glob("[0-9]*")),
        key=lambda name: int(name.split(".")[0]),
    )
    assert int(newest_name.split(".")[0]) == batch


@pytest.mark.parametrize("every", [3, 10])
@pytest.mark.parametrize("batch", [1, 7, 11])
def test_a_new_output_begins_with_the_rewound_log_without_its_entries(
    tmp_path: Path, batch: int, every: int
) -> None:
    made = write_query(tmp_path, Traits(newest=12, compact_every=every))
    query = read_tree(LocalTree(made.checkpoint), LocalTree(made.output))
    output, rewound, new = (LocalTree(tmp_path / each) for each in ("output", "rewound", "new"))

    rewind_output(query, output, rewound, batch)
    begin_output(query, output, new, batch, newest=batch)

    logs = [tmp_path / each / "_spark_metadata" for each in ("rewound", "new")]
    names = [sorted(file.name for file in log.iterdir()) for log in logs]
    assert names[0] == names[1] != []
    assert log_lines(logs[1]) == []
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["_spark_metadata"]


def test_a_file_sink_without_its_log_in_the_new_place_is_refused(tmp_path: Path) -> None:
    made = write_query(tmp_path / "home", Traits())
    other = write_query(tmp_path / "other", Traits(has_output=False))

    assert refusals(asked(made, tmp_path, begins_output=False)) == [Check.SINK]
    assert refusals(asked(other, tmp_path, begins_output=False)) == []


def test_the_preflight_allows_a_sound_rewind(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits())

    verdict = asked(made, tmp_path)

    assert verdict.is_possible
    assert {each.check for each in verdict.findings} >= {
        *(Check.POINT, Check.FILES, Check.STORE, Check.SOURCES, Check.BOUNDARIES),
        *(Check.CODE, Check.SINK, Check.TARGET),
    }
    assert not (tmp_path / "fork").exists()


PLAN = PlanDescription(
    sources=(SourceKind.FILE,),
    operators=(
        PlannedOperator(
            name="stateStoreSave",
            schemas={"default": StateSchema((("k", "long"),), (("count", "long"),))},
        ),
    ),
)


@pytest.mark.parametrize(
    ("check", "message", "changes"),
    [
        (Check.POINT, "no batch 99", {"request": ForkRequest(batch_id=99)}),
        (Check.SINK, "would drop the rows of batches 8 to 12", {"output": Output.SAME_FILES}),
        (
            Check.BOUNDARIES,
            "was not planned",
            {"request": ForkRequest(batch_id=12, boundaries=Boundaries.SAME)},
        ),
        (
            Check.SOURCES,
            "2 files after the batch are gone",
            {"missing_inputs": ("file:///data/in/00009.json", "file:///data/in/00011.json")},
        ),
        (
            Check.CODE,
            "1 sources, and the new code 2",
            {"plan": replace(PLAN, sources=(SourceKind.FILE, SourceKind.RATE))},
        ),
        (Check.CODE, "Source 0 is file", {"plan": replace(PLAN, sources=(SourceKind.KAFKA,))}),
        (
            Check.CODE,
            "1 stateful operators, and the new code 0",
            {"plan": replace(PLAN, operators=())},
        ),
        (
            Check.CODE,
            "is stateStoreSave in the checkpoint, and dedupe",
            {"plan": replace(PLAN, operators=(PlannedOperator(name="dedupe"),))},
        ),
        (
            Check.CODE,
            r"value of operator 0 .* is \(count long\), and \(count double\)",
            {
                "plan": replace(
                    PLAN,
                    operators=(
                        PlannedOperator(
                            name="stateStoreSave",
                            schemas={
                                "default": StateSchema((("k", "long"),), (("count", "double"),))
                            },
                        ),
                    ),
                )
            },
        ),
    ],
)
def test_the_preflight_refuses_exactly_the_check_that_fails(
    tmp_path: Path, check: Check, message: str, changes: dict[str, object]
) -> None:
    made = write_query(tmp_path, Traits())

    verdict = asked(made, tmp_path, **{"plan": PLAN, **changes})

    refused = [each for each in verdict.findings if each.outcome is Outcome.REFUSED]
    assert [each.check for each in refused] == [check]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refused[0].text)


def test_the_preflight_reads_every_file_of_the_batch(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits())
    made.flip("state/0/1/7.delta")

    assert refusals(asked(made, tmp_path)) == [Check.FILES]
    assert asked(made, tmp_path, request=ForkRequest(batch_id=5)).is_possible


def test_the_preflight_compares_offsets_with_kafka(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits(sources=("kafka",)))

    assert asked(made, tmp_path).is_possible
    assert refusals(asked(made, tmp_path, source_bounds={0: {"rides-0": (701, 5000)}})) == [
        Check.SOURCES
    ]
    assert asked(made, tmp_path, source_bounds={0: {"rides-0": (700, 5000)}}).is_possible


def test_the_preflight_refuses_a_batch_within_mixed_timelines(tmp_path: Path) -> None:
    made = write_query(tmp_path, Traits(has_sums=False, has_output=False))
    made.rewind_by_hand(2)
    made.go_on(12, made.planned_ms[12] + DAY_MS)
    stale = made.checkpoint / "state/0/0/5.snapshot"
    os.utime(stale, (made.planned_ms[2] / 1000, made.planned_ms[2] / 1000))

    late = asked(made, tmp_path, request=ForkRequest(batch_id=7))
    early = asked(made, tmp_path, request=ForkRequest(batch_id=2))

    assert refusals(late) == [Check.TIMELINE]
    assert early.is_possible


def forked(made: Written, target: Path, request: ForkRequest):  # type: ignore[no-untyped-def]
    tree, query = look(made)
    return fork(tree, query, tree_at(str(target), [str(target.parent)]), request)


def saved(made: Written, target: Path, *, keeps_next: bool = False) -> SavepointManifest:
    tree, query = look(made)
    request = SavepointRequest(
        batch_id=7, label="before the deploy", taken_ms=5, keeps_next=keeps_next
    )
    return take_savepoint(tree, query, LocalTree(target), request)


def asked(made: Written, home: Path, **changes: object) -> ForkVerdict:
    usual = {"request": ForkRequest(batch_id=7), "output": Output.NEW, "begins_output": True}
    given = {**usual, **changes}
    tree, query = look(made)
    return preflight(tree, query, LocalTree(home / "fork"), Question(**given))  # type: ignore[arg-type]


def refusals(verdict: ForkVerdict) -> list[Check]:
    return [each.check for each in verdict.findings if each.outcome is Outcome.REFUSED]


def look(made: Written) -> tuple[Tree, QueryDirectory]:
    tree = LocalTree(made.checkpoint)
    output = LocalTree(made.output) if made.traits.has_output else None
    return tree, read_tree(tree, output)


def logged(folder: Path) -> list[int]:
    return sorted(line["batchId"] for line in log_lines(folder))


def log_lines(folder: Path) -> list[dict]:  # type: ignore[type-arg]
    """Reads the log as Spark does: the newest compact file, and the plain files after it."""
    names = {int(p.name.split(".")[0]): p for p in folder.glob("[0-9]*")}
    compact = max((n for n, p in names.items() if p.suffix), default=-1)
    chain = [p for n, p in sorted(names.items()) if n >= compact]
    assert all(log_entries_of(p.read_bytes()) is not None for p in chain)
    return [json.loads(line) for p in chain for line in p.read_text().split("\n")[1:] if line]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
