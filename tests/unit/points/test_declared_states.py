"""The states of an operator are known without a record: opening it declares them."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipelines.connectors import BlackHole
from pipelines.domain.ids import Uid
from pipelines.operators.rows import Row
from pipelines.points.fit import declared_states
from pipelines.protocol.compatibility import DeclaredColumns
from pipelines.stream import (
    Environment,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RowContext,
    RuntimeContext,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.unit.runtime.fakes import SCHEMA, ListSource


class Keeping(KeyedProcessFunction):
    def open(self, runtime: RuntimeContext) -> None:
        profile = pa.struct([("name", pa.string()), ("age", pa.int32())])
        runtime.get_state(ValueStateDescriptor("profile", profile, ttl=StateTtlConfig(5)))
        runtime.get_map_state(MapStateDescriptor("visits", pa.string(), pa.int64()))
        runtime.get_operator_list_state(ListStateDescriptor("buffer", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        yield row


def test_a_process_function_declares_its_keyed_state_timers_and_operator_state() -> None:
    env = Environment()
    stream = env.source(ListSource([]), uid="in").key_by("key")
    stream.process(Keeping(), SCHEMA, uid="keep").sink(BlackHole(), uid="out")

    declared = declared_states(env.build())[Uid("keep")]

    columns = {name: list(state.types) for name, state in declared.items()}
    assert columns == {
        "timers.event": ["key", "__timestamp_ms", "__key_group"],
        "timers.processing": ["key", "__timestamp_ms", "__key_group"],
        "profile": ["key", "name", "age", "__updated_ms", "__key_group"],
        "visits": ["key", "visits_key", "visits", "__position", "__key_group"],
        "visits.keys": ["key", "__position", "visits_key", "__key_group"],
        "visits.extents": ["key", "__begin", "__end", "__key_group"],
        "operator.buffer": ["buffer"],
    }
    assert kinds(declared.values()) == {"table", "split"}


def kinds(states: Iterable[DeclaredColumns]) -> set[str]:
    return {state.kind for state in states}
