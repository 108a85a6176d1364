"""A query that wrote thirteen batches, and a check of what the page does with it."""

from pathlib import Path
from typing import Any

from pipelines.storage.trees import LocalTree
from pipelines.structured.directory import read_tree
from pipelines.structured.doctor import examine
from tests.structured_directories import Traits, write_query

write_query(Path("queries").absolute(), Traits(has_output=False))
Path("queries/checkpoint").rename("queries/rides")


def check(names: dict[str, Any]) -> None:
    forked = read_tree(LocalTree(Path("queries/rides-again").absolute()))

    assert names["complete"] == list(range(13))
    assert names["found"].problems == ()
    assert names["manifest"].batch_id == 11
    assert (forked.query_id, forked.newest_planned) == (names["made"].query_id, 12)
    assert examine(forked) == ()
