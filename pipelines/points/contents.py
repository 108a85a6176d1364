"""Lists what a point holds, operator by operator; reads only its manifest."""

from collections.abc import Iterator

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.point_contents import OperatorInside, StateInside
from pipelines.domain.snapshots import Manifest, OperatorSnapshot, StateHandle
from pipelines.runtime.subtask.snapshots.stored_output import committable_count


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
