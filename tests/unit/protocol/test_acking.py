"""Acking: random trees are acked once all their records are processed; then corner cases."""

import numpy as np
import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.protocol.acking import (
    SETTLED,
    Acker,
    Ids,
    RotatingTrees,
    Settled,
    ackers_of,
    tree_ids,
)
from tests.unit.protocol.record_trees import Trees

TREE = tree_ids(0, np.array([0]))


@pytest.mark.parametrize("seed", range(100))
def test_a_tree_is_acked_when_the_last_of_its_records_is_processed(seed: int) -> None:
    trees = Trees(seed)

    while trees.step():
        for tree in trees.newly_acked():
            assert trees.open_records_of(tree) == 0

    assert sorted(trees.acked) == trees.begun


@pytest.mark.parametrize("seed", range(30))
def test_a_lost_record_leaves_its_trees_open_and_no_others(seed: int) -> None:
    trees = Trees(seed, losing=0.05)

    while trees.step():
        pass

    assert sorted(trees.acked) == [t for t in trees.begun if t not in trees.damaged]


@pytest.mark.parametrize("seed", range(30))
def test_a_failed_record_fails_its_trees_once_and_no_others(seed: int) -> None:
    trees = Trees(seed, failing=0.05)

    while trees.step():
        pass

    assert sorted(trees.failed) == sorted(trees.damaged)
    assert sorted(trees.acked) == [t for t in trees.begun if t not in trees.damaged]


def test_messages_may_come_before_the_spout_announces_the_tree() -> None:
    acker = Acker(index=0, count=1)

    assert acker.on_ack(TREE, edges(5)) == []
    assert settled(acker.on_init(TREE, edges(5))) == ([0], [])


def test_a_failure_may_come_before_the_spout_announces_the_tree() -> None:
    acker = Acker(index=0, count=1)

    assert acker.on_fail(TREE) == []
    assert settled(acker.on_init(TREE, edges(5))) == ([], [0])


def test_a_record_without_descendants_is_acked_at_once() -> None:
    assert settled(Acker(index=0, count=1).on_init(TREE, edges(0))) == ([0], [])


def test_a_record_anchored_twice_to_one_tree_counts_once() -> None:
    acker = Acker(index=0, count=1)
    acker.on_init(TREE, edges(5))
    twice = np.repeat(TREE, 2)

    assert acker.on_ack(twice, edges(5 ^ 7, 9)) == []
    assert settled(acker.on_ack(twice, edges(7, 9))) == ([0], [])


def test_messages_about_a_settled_tree_change_nothing() -> None:
    acker = Acker(index=0, count=1)
    acker.on_init(TREE, edges(5))
    acker.on_ack(TREE, edges(5))

    assert acker.on_ack(TREE, edges(3)) == acker.on_fail(TREE) == acker.on_ack(TREE, edges(3)) == []
    assert acker.statistics().late_count == 3


def test_an_unsettled_tree_is_forgotten_after_three_rotations() -> None:
    acker = Acker(index=0, count=1)
    acker.on_init(TREE, edges(5))

    for _ in range(2):
        acker.rotate()
        acker.on_ack(TREE, edges(0))
    assert acker.statistics().late_count == 0
    acker.rotate()

    assert acker.on_ack(TREE, edges(5)) == []
    assert acker.statistics().late_count == 1


def test_trees_keep_their_numbers_when_older_ones_are_forgotten() -> None:
    acker = Acker(index=1, count=2)
    acker.on_init(tree_ids(0, np.array([1, 3])), edges(5, 5))
    for _ in range(3):
        acker.rotate()

    assert settled(acker.on_init(tree_ids(0, np.array([5])), edges(0))) == ([5], [])


def test_tracks_many_settled_trees_while_one_tree_stays_open() -> None:
    """The acker's tables grow several times, and the same messages also have late acks."""
    acker = Acker(index=0, count=1)
    numbers = np.arange(100_000)
    acker.on_init(tree_ids(3, numbers), np.full(len(numbers), 5, np.uint64))

    acked = []
    for part in np.array_split(numbers[1:], 37):
        mentioned = np.concatenate([part, [1]])  # soon settled, and late from then on
        verdicts = acker.on_ack(tree_ids(3, mentioned), np.full(len(mentioned), 5, np.uint64))
        acked += [int(n) for v in verdicts for n in v.acked]

    assert sorted(acked) == list(range(1, 100_000))
    assert acker.statistics().late_count == 35  # in the first message it is XORed twice


def test_settled_trees_make_room_for_new_ones_and_stay_settled() -> None:
    kept = RotatingTrees(2)

    for first in range(0, 50_000, 500):
        places, is_kept = kept.find(np.array([0, *range(first + 1, first + 501)]))
        assert is_kept.tolist() == [kept.base == 0, *[True] * 500]
        assert not kept.states[places[-500:]].any()
        kept.states[places] = SETTLED

    assert kept.base > 40_000
    assert len(kept.values) == len(kept.states) < 5_000


def test_ackers_share_the_trees_and_refuse_those_of_others() -> None:
    trees = tree_ids(0, np.arange(10))

    assert sorted(set(ackers_of(trees, 3).tolist())) == [0, 1, 2]
    with pytest.raises(InvariantViolated):
        Acker(index=1, count=3).on_init(trees, np.zeros(10, np.uint64))


def edges(*values: int) -> Ids:
    return np.array(values, np.uint64)


def settled(verdicts: list[Settled]) -> tuple[list[int], list[int]]:
    (verdict,) = verdicts
    return verdict.acked.tolist(), verdict.failed.tolist()
