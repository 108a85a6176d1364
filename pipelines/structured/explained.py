"""The new code of a query, as the helper `explain` of the listener's package has written it.

The helper runs where the author's code and Spark are; it writes what Spark itself would write at
the first batch. This module reads that file, and runs nothing of it.
"""

import base64
import binascii
from typing import Annotated

import msgspec
from msgspec import Meta

from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.structured.formats import Damaged, SourceKind, StateSchema, schema_of
from pipelines.structured.preflight import PlanDescription, PlannedOperator

FORMAT = 1
CONTENT_BYTES_MAX = 4 << 20
_Name = Annotated[str, Meta(max_length=1_000)]


class _Operator(msgspec.Struct):
    """`schemas`: {store: the content of Spark's schema file, in base64}."""

    id: int
    name: _Name
    schemas: dict[_Name, str] = {}


class _Explained(msgspec.Struct):
    format: int
    spark: _Name
    operators: Annotated[list[_Operator], Meta(max_length=1_000)]
    sources: Annotated[list[_Name], Meta(max_length=1_000)]
    shuffle_partitions: int | None = None
    store_class: _Name = ""


def plan_of(content: bytes) -> PlanDescription:
    """Raises Rejected, with the next step, if the helper did not write it."""
    if len(content) > CONTENT_BYTES_MAX:
        raise Rejected(
            f"The plan has {len(content):,} bytes, and may have {CONTENT_BYTES_MAX:,}; give the"
            " file that `explain` of ftdash_listener has written."
        )
    try:
        told = msgspec.json.decode(content, type=_Explained)
    except UNDECODABLE as error:
        raise Rejected(
            f"The plan cannot be read ({error}); give the file that `explain` of ftdash_listener"
            " has written."
        ) from error
    if told.format != FORMAT:
        raise Rejected(
            f"The plan has format {told.format}, and this version reads {FORMAT}; use the listener"
            " of this version of ftdash."
        )
    operators = sorted(told.operators, key=lambda each: each.id)
    return PlanDescription(
        sources=tuple(_kind(each) for each in told.sources),
        operators=tuple(PlannedOperator(name=o.name, schemas=_schemas(o)) for o in operators),
        shuffle_partitions=told.shuffle_partitions,
        store_class=told.store_class,
    )


def _kind(name: str) -> SourceKind:
    """A kind of source that is not known is not compared."""
    known = {each.value: each for each in SourceKind}
    return known.get(name, SourceKind.NONE)


def _schemas(operator: _Operator) -> dict[str, StateSchema]:
    found = {}
    for store, encoded in operator.schemas.items():
        try:
            schema = schema_of(base64.b64decode(encoded, validate=True))
        except (Damaged, binascii.Error) as error:
            raise Rejected(
                f"The plan holds a damaged schema of operator {operator.id}, store {store}; write"
                " it again with `explain` of ftdash_listener."
            ) from error
        if schema is not None:
            found[store] = schema
    return found
