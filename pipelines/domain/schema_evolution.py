"""Decides which changes of a state's columns a restore accepts; it refuses all others.

Accepted are an added column that has a default, and a type that became wider without losing a
value. A key column never changes: its bytes decide the key group, so the row would belong to
another subtask. Types are known by their Arrow names, as in a manifest, so that a point can be
judged without its rows. Source: Flink's state schema evolution (POJO and Avro), limited to changes
at which no value can fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.domain.errors import Rejected

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
"""Every value of the left type is a value of the right ones: doubles hold 53 bits, floats 24."""


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
    """What a restore would change, one phrase each; empty if the columns are the same.

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
            raise Rejected(f"The snapshot of the state {state!r} lacks the column {name!r}.")
        return f"column {name!r} is added with its default"
    if found == wanted:
        return ""
    if name in declared.fixed or not is_wider(found, wanted):
        raise Rejected(
            f"The column {name!r} of the state {state!r} is {found} in the snapshot and {wanted}"
            " in the operator."
        )
    return f"column {name!r} is widened from {found} to {wanted}"
