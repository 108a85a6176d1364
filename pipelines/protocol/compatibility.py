"""Decides, operator by operator, whether a pipeline can take over the state of a recovery point.

Pure, and reads no rows: state belongs to a uid, so the manifest and the pipeline's declarations
decide everything. A pipeline of another name with the same uids may take a point over; one that
shares no uid may not.

A restore accepts two changes of a state's columns: an added column that has a default, and a type
that became wider without losing a value. A key column never changes: its bytes decide the key
group, so the row would belong to another subtask. Types are compared by their Arrow names, as in a
manifest, so that a point can be judged without its rows.

Source: Flink, `StateAssignmentOperation.checkStateMappingCompleteness` and
`Checkpoints.loadAndValidateCheckpoint`. The rules for columns are ours: Flink's state schema
evolution (POJO and Avro), limited to changes at which no value can fail.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import JobGraph, NodeKind
from pipelines.domain.ids import Uid, channel_ends
from pipelines.domain.settings import check_parallelism
from pipelines.domain.snapshots import Manifest, NewNames, OperatorSnapshot, StateHandle

_WIDER = {
    "int8": ("int16", "int32", "int64", "float", "double"),
    "int16": ("int32", "int64", "float", "double"),
    "int32": ("int64", "double"),
    "uint8": ("uint16", "uint32", "uint64", "int16", "int32", "int64", "float", "double"),
    "uint16": ("uint32", "uint64", "int32", "int64", "float", "double"),
    "uint32": ("uint64", "int64", "double"),
    "halffloat": ("float", "double"),
    "float": ("double",),
    "string": ("large_string",),
    "binary": ("large_binary",),
}
"""Every value of the left type is also one of the right types: doubles hold 53 bits, floats 24."""


@dataclass(frozen=True, slots=True)
class DeclaredColumns:
    """An operator's declaration of one state: the columns of its snapshot, by Arrow type name."""

    state: str
    kind: str  # "table" or "batches", or a `Redistribution`
    types: Mapping[str, str]
    defaulted: frozenset[str]  # may be missing in a snapshot; rows then get the default
    fixed: frozenset[str]  # keys and the engine's own columns: these never change


def is_wider(found: str, declared: str) -> bool:
    return declared in _WIDER.get(found, ())


def changes_of(declared: DeclaredColumns, found: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what a restore would change, one phrase each; empty if the columns are the same.

    Raises:
        Rejected: for the first column that does not fit, with the state and both types.
    """
    for name, found_type in found.items():
        if name not in declared.types:
            raise Rejected(
                f"The column {name!r} ({found_type}) of the state {declared.state!r} is in the"
                " snapshot and not in the operator any more; a column cannot be dropped."
            )
    changes = (_change(declared, name, found.get(name)) for name in declared.types)
    return tuple(change for change in changes if change)


def _change(declared: DeclaredColumns, name: str, found: str | None) -> str:
    state, wanted = declared.state, declared.types[name]
    if found is None:
        if name not in declared.defaulted:
            raise Rejected(f"The snapshot of the state {state!r} has no column {name!r}.")
        return f"column {name!r} is added with its default"
    if found == wanted:
        return ""
    if name in declared.fixed or not is_wider(found, wanted):
        raise Rejected(
            f"The column {name!r} of the state {state!r} is {found} in the snapshot and {wanted}"
            " in the operator."
        )
    return f"column {name!r} is widened from {found} to {wanted}"


Declared = Mapping[Uid, Mapping[str, DeclaredColumns]]
"""Maps each operator to its states by name."""


@dataclass(frozen=True, slots=True)
class Target:
    """The run that wants to start from a point."""

    pipeline: str
    graph: JobGraph
    declared: Declared
    parallelism: int
    max_parallelism: int
    allows_non_restored_state: bool = False


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The point fits if `problems` is empty; `dropped_states` then stay behind."""

    problems: tuple[str, ...]
    matched: tuple[Uid, ...]  # has state in the point and is in the pipeline
    new: tuple[Uid, ...]  # in the pipeline only: begins empty, a source at its beginning
    dropped: tuple[Uid, ...]  # has state in the point and is not in the pipeline any more
    dropped_states: tuple[tuple[Uid, str], ...]
    changes: tuple[str, ...]  # what happens to columns, one sentence each


def compare(manifest: Manifest, target: Target) -> Compatibility:
    """Finds all problems, not only the first."""
    held = _operators_with_state(manifest)
    uids = [node.uid for node in target.graph.nodes]
    dropped = tuple(uid for uid in held if uid not in uids)
    undeclared = tuple(_undeclared(held, target))
    states = [outcome for uid in held if uid in uids for outcome in _states(uid, held, target)]
    problems = [
        *_parallelism_problems(manifest, target),
        *_roles(held, target),
        *_cut_connections(manifest, target),
        *_left_behind(manifest, held, dropped, undeclared, target),
        *(problem for problem, _ in states if problem),
    ]
    return Compatibility(
        tuple(problems),
        tuple(uid for uid in held if uid in uids),
        tuple(uid for uid in uids if uid not in manifest.operator_ids and uid not in held),
        dropped,
        undeclared,
        tuple(change for _, change in states if change),
    )


def unfit_names(manifest: Manifest, graph: JobGraph, new_names: NewNames) -> Iterator[str]:
    """Yields why operators of the point cannot get these new names, one sentence each.

    A sink keeps its name, because the ledger of its output and the claim to its target contain it.
    So does a source that has set records aside: its quarantine is a directory of that name.
    """
    held, known = _operators_with_state(manifest), {node.uid for node in graph.nodes}
    there = {operator.uid for subtask in manifest.subtasks for operator in subtask.operators}
    for old, new in new_names.items():
        if old not in held:
            yield f"The point holds no state of an operator {old!r}; it holds {_names(list(held))}."
            continue
        if new not in known:
            yield f"The pipeline has no operator {new!r} that could take the state of {old!r}."
        if new in there and new not in new_names:
            yield f"The point knows {new!r} itself, so that cannot take the state of {old!r}."
        if sum(each == new for each in new_names.values()) > 1:
            yield f"Only one operator of the point can become {new!r}."
        if any(each.has_output or each.outputs for each in held[old]):
            yield f"{old!r} is a sink, whose ledger has its name; keep that name in the pipeline."
        if any(each.quarantined or each.replayed is not None for each in held[old]):
            yield (
                f"{old!r} has records in quarantine under its name; keep that name in the pipeline."
            )


def likely_names(manifest: Manifest, target: Target) -> dict[Uid, Uid]:
    """Returns operators of the point that seem to have another uid in the pipeline now.

    That uid is one that the point does not know, and the only one with the very same states.
    """
    held = _operators_with_state(manifest)
    known = {node.uid: node.kind for node in target.graph.nodes}
    gone = [uid for uid in held if uid not in known]
    new = [uid for uid in known if uid not in manifest.operator_ids and uid not in held]
    alike = {
        old: [each for each in new if _is_alike(held[old], each, known, target)] for old in gone
    }
    found = {old: each[0] for old, each in alike.items() if len(each) == 1}
    taken = list(found.values())
    return {old: each for old, each in found.items() if taken.count(each) == 1}


def _is_alike(
    snapshots: list[OperatorSnapshot],
    uid: Uid,
    kinds: Mapping[Uid, NodeKind],
    target: Target,
) -> bool:
    if any(each.has_output or each.outputs for each in snapshots):
        return False  # a sink keeps its name
    is_source = any(each.positions is not None for each in snapshots)
    if is_source or kinds[uid] is NodeKind.SOURCE:
        return is_source and kinds[uid] is NodeKind.SOURCE
    held = {
        state.state: (state.kind, dict(state.schema)) for each in snapshots for state in each.states
    }
    declared = {
        name: (each.kind, dict(each.types)) for name, each in target.declared.get(uid, {}).items()
    }
    # A state without an entry, such as the timers of a function that sets none, is in no snapshot.
    return bool(held) and all(declared.get(name) == each for name, each in held.items())


def _operators_with_state(manifest: Manifest) -> dict[Uid, list[OperatorSnapshot]]:
    """Returns all subtasks' snapshots by uid; operators that hold nothing may come and go."""
    held: dict[Uid, list[OperatorSnapshot]] = {}
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            if operator.states or operator.has_output or operator.positions is not None:
                held.setdefault(operator.uid, []).append(operator)
    return held


def _parallelism_problems(manifest: Manifest, target: Target) -> Iterator[str]:
    try:
        check_parallelism(target.parallelism, target.max_parallelism)
        target.graph.check_fits(target.max_parallelism)
    except Rejected as refusal:
        yield str(refusal)
    if manifest.max_parallelism != target.max_parallelism:
        yield (
            f"The point was written with a maximum parallelism of {manifest.max_parallelism} and"
            f" this run has {target.max_parallelism}; key groups cannot be remapped."
        )


def _cut_connections(manifest: Manifest, target: Target) -> Iterator[str]:
    """Records in flight can only be restored where the same two vertices are connected."""
    connected = {
        (edge.upstream_vertex, vertex.uid, edge.port)
        for vertex in target.graph.vertices
        for edge in vertex.inputs
    }
    in_flight = {
        (ends.upstream, ends.downstream, ends.port)
        for subtask in manifest.subtasks
        for ends in (channel_ends(handle.channel) for handle in subtask.in_flight)
    }
    for upstream, downstream, _ in sorted(in_flight - connected):
        yield (
            f"It holds records on their way from {upstream!r} to {downstream!r}, which"
            f" {target.pipeline!r} does not connect like that; restore a savepoint, which holds"
            " none, or a checkpoint that aligned."
        )


def _left_behind(
    manifest: Manifest,
    held: Mapping[Uid, object],
    dropped: tuple[Uid, ...],
    undeclared: tuple[tuple[Uid, str], ...],
    target: Target,
) -> Iterator[str]:
    if held and len(dropped) == len(held):
        yield (
            f"It is a point of the pipeline {manifest.pipeline!r}, and no operator of"
            f" {target.pipeline!r} has state in it; it holds that of {_names(list(held))}."
        )
        return
    if target.allows_non_restored_state:
        return
    for uid in dropped:
        yield (
            f"It holds state of the operator {uid!r}, which the pipeline {target.pipeline!r} does"
            " not have; allow non-restored state to leave it behind."
        )
    for uid, state in undeclared:
        yield (
            f"It holds a state {state!r} that the operator {uid!r} no longer has; allow"
            " non-restored state to leave it behind."
        )


def _roles(held: Mapping[Uid, list[OperatorSnapshot]], target: Target) -> Iterator[str]:
    """Positions belong to a source, committables to a sink; no other operator can take them."""
    kinds = {node.uid: node.kind for node in target.graph.nodes}
    for uid, snapshots in held.items():
        kind = kinds.get(uid)
        if kind is None:
            continue
        if kind is not NodeKind.SOURCE and any(s.positions is not None for s in snapshots):
            yield f"{uid!r} was a source when the point was taken and is a {kind} now."
        if kind is not NodeKind.SINK and any(s.has_output for s in snapshots):
            yield f"{uid!r} was a sink when the point was taken and is a {kind} now."


def _undeclared(
    held: Mapping[Uid, list[OperatorSnapshot]], target: Target
) -> Iterator[tuple[Uid, str]]:
    known = {node.uid for node in target.graph.nodes}
    for uid, snapshots in held.items():
        declared = target.declared.get(uid, {})
        names = sorted({handle.state for s in snapshots for handle in s.states})
        yield from ((uid, name) for name in names if uid in known and name not in declared)


def _states(
    uid: Uid, held: Mapping[Uid, list[OperatorSnapshot]], target: Target
) -> Iterator[tuple[str, str]]:
    """Yields a problem and changes, either may be empty, for each declared state in the point."""
    handles: dict[str, StateHandle] = {}
    for snapshot in held[uid]:
        for handle in snapshot.states:
            handles.setdefault(handle.state, handle)
    for name, columns in target.declared.get(uid, {}).items():
        if name in handles:
            yield _fit(uid, handles[name], columns)


def _fit(uid: Uid, handle: StateHandle, columns: DeclaredColumns) -> tuple[str, str]:
    if handle.kind != columns.kind:
        problem = (
            f"The state {handle.state!r} of {uid!r} was one of {handle.kind!r} when the point was"
            f" taken and is one of {columns.kind!r} now."
        )
        return problem, ""
    try:
        changes = changes_of(columns, handle.schema)
    except Rejected as refusal:
        return f"{uid!r}: {refusal}", ""
    if not changes:
        return "", ""
    return "", f"In the state {handle.state!r} of {uid!r}, {'; '.join(changes)}."


def _names(uids: list[Uid]) -> str:
    return ", ".join(repr(uid) for uid in uids)
