"""State without a key: lists of a subtask, and maps that all subtasks share."""

import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import Redistribution
from pipelines.state.backend import FrozenState
from pipelines.state.descriptors import ListStateDescriptor, MapStateDescriptor
from pipelines.state.entries import StateTtlConfig
from pipelines.state.operator_states import OperatorStates

BUFFER = ListStateDescriptor("buffer", pa.struct([("id", pa.int64()), ("text", pa.string())]))
RULES = MapStateDescriptor("rules", pa.string(), pa.float64())
SPLIT = Redistribution.SPLIT


def test_a_list_keeps_what_was_added_in_order_until_it_is_replaced() -> None:
    state = OperatorStates().list_of(BUFFER, SPLIT)

    state.add(elements(1, 2))
    state.add(elements())
    state.add(elements(3))

    assert (len(state), ids(state.get())) == (3, [1, 2, 3])
    state.update(elements(9))
    assert (len(state), ids(state.get())) == (1, [9])
    state.clear()
    assert (len(state), state.get().type) == (0, BUFFER.type)


def test_later_writes_do_not_change_a_cut() -> None:
    states = OperatorStates()
    buffer, rules = states.list_of(BUFFER, SPLIT), states.broadcast(RULES)
    states.allow_broadcast_writes(True)
    buffer.add(elements(1))
    rules.put("a", 1.5)

    cut = states.cut()
    buffer.add(elements(2))
    buffer.get()
    rules.put("a", 2.5)
    rules.put("b", 3.5)

    assert [(s.name, s.kind, s.rows) for s in cut] == [
        ("operator.buffer", "split", 1),
        ("operator.rules", "broadcast", 1),
    ]
    assert rows_in(cut[0]) == [{"buffer": {"id": 1, "text": "1"}}]
    assert rows_in(cut[1]) == [{"key": "a", "value": 1.5}]


def test_a_restored_state_continues_from_its_cut() -> None:
    states = OperatorStates()
    states.list_of(BUFFER, SPLIT).add(elements(1, 2))
    rules = states.broadcast(RULES)
    states.allow_broadcast_writes(True)
    rules.put_all(pa.array(["a", None, "a"]), pa.array([1.0, 2.0, 3.0]))
    restored = OperatorStates()
    buffer, own = restored.list_of(BUFFER, SPLIT), restored.broadcast(RULES)

    for frozen in states.cut():
        restored.restore(frozen.name, frozen.batches)

    assert ids(buffer.get()) == [1, 2]
    assert dict(own.items()) == {"a": 3.0, None: 2.0}


def test_a_map_looks_up_the_keys_of_whole_batches() -> None:
    states = OperatorStates()
    rules = states.broadcast(RULES)
    states.allow_broadcast_writes(True)
    rules.put("a", 1.5)
    rules.put("b", None)
    rules.put(None, 2.5)
    rules.put("c", 3.5)
    before = rules.look_up(pa.array(["c"])).to_pylist()
    rules.remove("c")
    removed = rules.look_up(pa.array(["c", "d"])).to_pylist()
    rules.put("d", 4.5)

    assert (before, removed) == ([3.5], [None, None])
    assert rules.look_up(pa.array(["d"])).to_pylist() == [4.5]
    found = rules.look_up(pa.array(["b", "a", "x", None, "a", "c"]))

    assert found.to_pylist() == [None, 1.5, None, 2.5, 1.5, None]
    assert (rules.contains("b"), rules.contains("c"), rules.get("a")) == (True, False, 1.5)


def test_a_map_may_be_written_only_where_all_subtasks_do_the_same() -> None:
    rules = OperatorStates().broadcast(RULES)

    for write in (
        lambda: rules.put("a", 1.0),
        lambda: rules.remove("a"),
        lambda: rules.put_all(pa.array(["a"]), pa.array([1.0])),
    ):
        with pytest.raises(Rejected, match="'rules' can only be written where the broadcast"):
            write()


def test_an_entry_of_the_wrong_type_is_refused_by_name_at_the_cut() -> None:
    states = OperatorStates()
    rules = states.broadcast(RULES)
    states.allow_broadcast_writes(True)
    rules.put("a", "much")

    with pytest.raises(Rejected, match="'rules' maps string to double"):
        states.cut()


def test_elements_of_another_type_are_refused() -> None:
    with pytest.raises(Rejected, match=r"'buffer' holds struct<.*>; it was given int64"):
        OperatorStates().list_of(BUFFER, SPLIT).add(pa.array([1]))


def test_a_name_declared_twice_and_a_time_to_live_are_refused() -> None:
    states = OperatorStates()
    states.list_of(BUFFER, SPLIT)
    aged = ListStateDescriptor("aged", pa.int64(), ttl=StateTtlConfig(1))

    with pytest.raises(Rejected, match="'buffer' is declared twice"):
        states.list_of(BUFFER, Redistribution.UNION)
    with pytest.raises(Rejected, match="'aged' cannot have a time-to-live"):
        states.list_of(aged, SPLIT)


def test_a_type_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(Rejected, match="the key column 'key' has type double"):
        OperatorStates().broadcast(MapStateDescriptor("rules", pa.float64(), pa.int8()))


def test_rows_of_a_state_that_was_not_declared_are_refused() -> None:
    with pytest.raises(Rejected, match=r"a state 'operator\.gone' that the operator does not"):
        OperatorStates().restore("operator.gone", [])


def elements(*numbers: int) -> pa.Array:
    return pa.array([{"id": n, "text": str(n)} for n in numbers], BUFFER.type)


def ids(found: pa.Array) -> list[int]:
    return [element["id"] for element in found.to_pylist()]


def rows_in(frozen: FrozenState) -> list[dict[str, object]]:
    return [row for batch in frozen.batches for row in batch.to_pylist()]
