"""When the preflight allows a fork to repartition its state, and when it refuses."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.storage.trees import LocalTree
from pipelines.structured.directory import read_tree
from pipelines.structured.fork import Boundaries, ForkRequest
from pipelines.structured.preflight import Check, ForkVerdict, Outcome, Output, Question, preflight
from pipelines.structured.repartition import refusals
from tests.structured_directories import Traits, Written, write_query

ROCKSDB = Traits(store="rocksdb", partitions=2)


@pytest.mark.parametrize(
    ("message", "traits", "changes"),
    [
        ("1 to 10,000 partitions, not 0", ROCKSDB, {"partitions": 0}),
        ("1 to 10,000 partitions, not 10,001", ROCKSDB, {"partitions": 10_001}),
        ("that number of partitions, 2, already", ROCKSDB, {"partitions": 2}),
        ("RocksDB only, and .* has the store HDFS-backed", Traits(), {}),
        ("keeps no state", replace(ROCKSDB, operator="none"), {}),
        ("cannot be compared", replace(ROCKSDB, operator="transformWithStateExec"), {}),
        ("works in one partition", replace(ROCKSDB, operator="globalLimit"), {}),
        (
            "cannot have its boundaries",
            ROCKSDB,
            {"request": ForkRequest(batch_id=7, boundaries=Boundaries.SAME)},
        ),
        ("the log of a file sink must not miss a batch", ROCKSDB, {"output": Output.REWOUND}),
    ],
)
def test_the_preflight_refuses_a_repartition(
    tmp_path: Path, message: str, traits: Traits, changes: dict[str, object]
) -> None:
    made = write_query(tmp_path, traits)

    verdict = asked(made, tmp_path, **changes)

    (refused,) = [each for each in verdict.findings if each.outcome is Outcome.REFUSED]
    assert refused.check is Check.PARTITIONS
    assert re.search(message, refused.text)


@pytest.mark.parametrize("store", ["rocksdb", "rocksdb2-changelog"])
def test_a_repartition_without_objections_is_possible_and_explained(
    tmp_path: Path, store: str
) -> None:
    made = write_query(tmp_path, replace(ROCKSDB, store=store))

    verdict = asked(made, tmp_path)

    assert verdict.is_possible
    (told,) = [each.text for each in verdict.findings if each.check is Check.PARTITIONS]
    assert "to 3 partitions instead of 2, and takes batch 8 of the fork" in told
    assert "experimental" in told


def test_an_operator_with_files_in_only_one_partition_is_refused(tmp_path: Path) -> None:
    """The operator has no key: Spark would move its only row to where the query does not look."""
    query = read_tree(LocalTree(write_query(tmp_path, ROCKSDB).checkpoint))
    (operator,) = query.operators
    alone = replace(operator, partitions=operator.partitions[:1])

    (text,) = refusals(replace(query, operators=(alone,)), query.by_id[7], 3)

    assert "works in one partition" in text


def asked(made: Written, home: Path, **changes: object) -> ForkVerdict:
    tree = LocalTree(made.checkpoint)
    query = read_tree(tree, LocalTree(made.output))
    given = {"request": ForkRequest(batch_id=7), "output": Output.NEW, "partitions": 3}
    given |= {"begins_output": True, **changes}
    return preflight(tree, query, LocalTree(home / "fork"), Question(**given))  # type: ignore[arg-type]
