"""Different keys that share a hash stay different keys, whatever happens to their neighbours.

The hash of a name is its length here: zero, one or two.
"""

import random

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import FrozenState, TableDescriptor
from pipelines.state.hashing import Hashes
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.in_memory.table import HashMapTable

KEY = pa.schema([("name", pa.string())])
TABLE = TableDescriptor("table", KEY, pa.schema([("count", pa.int64())]), {"count": 0}, ("name",))


@pytest.mark.parametrize("seed", range(60))
def test_a_table_behaves_like_a_dictionary_even_if_most_keys_collide(seed: int) -> None:
    rng = random.Random(seed)
    backend = HashMapBackend(KeyGroupRange(0, 127), 128, hash_keys=by_length)
    table = backend.table(TABLE)
    model: dict[str, int] = {}
    cuts: list[tuple[FrozenState, dict[str, int]]] = []

    for number in range(80):
        match rng.random():
            case p if p < 0.6:
                names = [random_name(rng) for _ in range(rng.randint(1, 8))]
                if rng.random() < 0.5:
                    seen = set(model)
                    unseen = [name not in seen and not seen.add(name) for name in names]  # type: ignore[func-returns-value]
                    assert table.enter(batch_of(names))[1].tolist() == unseen
                table.write("count", rows_of(table, names), np.full(len(names), number))
                model |= dict.fromkeys(names, number)
            case p if p < 0.9:
                gone = rng.sample(sorted(model), rng.randint(0, len(model)))
                table.delete(rows_of(table, gone))
                model = {name: count for name, count in model.items() if name not in gone}
            case _:
                cuts.append((backend.cut()[0], dict(model)))
        assert counts_of(table, sorted(model)) == [model[name] for name in sorted(model)]
        assert len(table) == len(model)

    for frozen, expected in cuts:
        rows = [row for batch in frozen.batches for row in batch.to_pylist()]
        assert len(rows) == frozen.rows == len(expected)
        assert {row["name"]: row["count"] for row in rows} == expected


def test_a_key_survives_the_deletion_of_the_one_whose_hash_it_shares() -> None:
    table = HashMapBackend(KeyGroupRange(0, 127), 128, hash_keys=by_length).table(TABLE)
    table.write("count", rows_of(table, ["a", "b", "c"]), np.array([1, 2, 3]))

    table.delete(rows_of(table, ["a"]))

    assert counts_of(table, ["b", "c"]) == [2, 3]
    assert len(table) == 2


def test_colliding_keys_of_one_batch_get_separate_rows() -> None:
    table = HashMapBackend(KeyGroupRange(0, 127), 128, hash_keys=by_length).table(TABLE)

    rows = rows_of(table, ["a", "b", "a", "b"])

    assert rows[0] == rows[2] != rows[1] == rows[3]
    assert table.keys(rows).column("name").to_pylist() == ["a", "b", "a", "b"]


def test_colliding_keys_are_restored_apart() -> None:
    backend, restored = (
        HashMapBackend(KeyGroupRange(0, 127), 128, hash_keys=by_length) for _ in range(2)
    )
    table = backend.table(TABLE)
    table.write("count", rows_of(table, ["a", "b", "", "cc", "dd"]), np.arange(5))
    again = restored.table(TABLE)

    restored.restore("table", backend.cut()[0].batches)

    assert counts_of(again, ["dd", "cc", "", "b", "a"]) == [4, 3, 2, 1, 0]


def by_length(batch: pa.RecordBatch, columns: object, after: object = None) -> Hashes:
    names = batch.column("name").to_pylist()
    return np.array([len(name) for name in names], dtype=np.uint64)


def random_name(rng: random.Random) -> str:
    return "".join(rng.choice("abcd") for _ in range(rng.randint(0, 2)))


def rows_of(table: HashMapTable, names: list[str]) -> np.ndarray:
    return table.rows_for(batch_of(names))


def batch_of(names: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(names, pa.string())], schema=KEY)


def counts_of(table: HashMapTable, names: list[str]) -> list[int]:
    return table.read("count", rows_of(table, names)).tolist()
