"""Lists what a point holds, operator by operator; reads only its manifest.

Turns rows into text for people. Nothing stored is ever executed.
"""

from collections.abc import Iterator

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.snapshots import Manifest, OperatorSnapshot, StateHandle
from pipelines.points.descriptions import OperatorInside, StateInside, Value
from pipelines.points.stored_output import committable_count


def contents(manifest: Manifest) -> list[OperatorInside]:
    """In the order in which operators stand in the pipeline."""
    found: dict[Uid, list[OperatorSnapshot]] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            found.setdefault(operator.uid, []).append(operator)
    return [_inside(uid, snapshots) for uid, snapshots in found.items()]


def handles_of(manifest: Manifest, uid: str, state: str) -> list[StateHandle]:
    """The handles of all subtasks that hold rows, in order. Raises Rejected if there is none."""
    found = [
        handle
        for subtask in manifest.subtasks
        for operator in subtask.operators
        for handle in operator.states
        if (operator.uid, handle.state) == (uid, state)
    ]
    if not found:
        raise Rejected(f"The point holds no rows in a state {state!r} of an operator {uid!r}.")
    return found


def bytes_of(handle: StateHandle) -> int:
    return sum(file.length for file in handle.files)


def pending_commits(manifest: Manifest) -> dict[Uid, int]:
    counts: dict[Uid, int] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            count = committable_count(operator)
            if count:
                counts[operator.uid] = counts.get(operator.uid, 0) + count
    return counts


def counters_of(manifest: Manifest) -> dict[str, int]:
    """Operator counters at the cut, summed over subtasks."""
    totals: dict[str, int] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            for name, value in operator.counters.items():
                key = f"{operator.uid}.{name}"
                totals[key] = totals.get(key, 0) + value
    return totals


def source_records_of(manifest: Manifest) -> int:
    return sum(
        operator.counters.get("records_read", 0)
        for subtask in manifest.subtasks
        for operator in subtask.operators
    )


def _inside(uid: Uid, snapshots: list[OperatorSnapshot]) -> OperatorInside:
    read = [each.counters["records_read"] for each in snapshots if "records_read" in each.counters]
    return OperatorInside(
        uid=uid,
        states=list(_states(snapshots)),
        is_source=any(each.positions is not None for each in snapshots),
        records_read=sum(read) if read else None,
        pending_outputs=sum(committable_count(each) for each in snapshots),
    )


def _states(snapshots: list[OperatorSnapshot]) -> Iterator[StateInside]:
    by_name: dict[str, list[StateHandle]] = {}
    for snapshot in snapshots:
        for handle in snapshot.states:
            by_name.setdefault(handle.state, []).append(handle)
    for name, handles in by_name.items():
        yield StateInside(
            state=name,
            kind=handles[0].kind,
            rows=sum(handle.rows for handle in handles),
            bytes=sum(map(bytes_of, handles)),
            subtasks=len(handles),
            columns=handles[0].schema,
        )


VALUE_LENGTH_MAX = 200


def shown_rows(batch: pa.RecordBatch | pa.Table) -> list[list[Value]]:
    columns = [texts_of(column) for column in batch.columns]
    return [[value_of(column[row]) for column in columns] for row in range(batch.num_rows)]


def texts_of(column: pa.Array) -> list[str | None]:
    """Binary as hexadecimal digits; the rest as Arrow writes it, or else as Python does."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return [None if value is None else str(value) for value in column.to_pylist()]
    return texts


def value_of(text: str | None) -> Value:
    return Value(None, 0) if text is None else Value(text[:VALUE_LENGTH_MAX], len(text))
