"""The plan of new code is read strictly, and none of the code runs."""

import base64
import json

import pytest

from pipelines.domain.errors import Rejected
from pipelines.structured.formats import SourceKind
from pipelines.structured.preflight import plan_of
from tests.structured_directories import schema_bytes

PLAN = {
    "format": 1,
    "spark": "4.3.0",
    "operators": [
        {
            "id": 0,
            "name": "stateStoreSave",
            "schemas": {"default": base64.b64encode(schema_bytes("double")).decode()},
        }
    ],
    "sources": ["file", "kafka", "something new"],
    "shuffle_partitions": 2,
}


def test_operators_schemas_and_sources_are_read() -> None:
    found = plan_of(json.dumps(PLAN).encode())

    assert found.sources == (SourceKind.FILE, SourceKind.KAFKA, SourceKind.NONE)
    assert found.operators is not None
    (operator,) = found.operators
    assert operator.name == "stateStoreSave"
    assert operator.schemas["default"].value == (("count", "double"),)
    assert found.shuffle_partitions == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"[1]", "cannot be read"),
        (json.dumps({**PLAN, "format": 2}).encode(), "has format 2, and this version reads 1"),
        (json.dumps({**PLAN, "sources": 3}).encode(), "cannot be read"),
        (
            json.dumps(
                {**PLAN, "operators": [{"id": 0, "name": "x", "schemas": {"default": "!"}}]}
            ).encode(),
            "damaged schema of operator 0, store default",
        ),
        (b" " * (5 << 20), "may have 4,194,304"),
    ],
)
def test_content_that_is_no_plan_is_refused_with_the_next_step(
    content: bytes, message: str
) -> None:
    with pytest.raises(Rejected, match=message) as refusal:
        plan_of(content)
    assert "ftdash" in str(refusal.value)
