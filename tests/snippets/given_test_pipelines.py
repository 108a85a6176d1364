"""The package `shop` that the page tests."""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any

import pyarrow as pa

from pipelines.connectors import ArrowRows
from pipelines.local import run_local
from pipelines.stream import Environment, count, flow, tumbling

__all__ = ["run_local"]

ORDER = pa.schema([("product", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


@dataclass(frozen=True, kw_only=True)
class Parameters:
    orders: Annotated[str, "directory of the orders"]


@flow
def shop(env: Environment, parameters: Parameters) -> None:
    orders = env.source(ArrowRows(ORDER.empty_table(), timestamp_column="at"), uid="orders")
    totals = orders.key_by("product").window(tumbling(minutes=1))
    totals.aggregate(orders=count(), uid="totals").collect(uid="result")


package, module = ModuleType("shop"), ModuleType("shop.flow")
module.shop = shop  # type: ignore[attr-defined]
sys.modules.update({"shop": package, "shop.flow": module})
pipeline = shop.build({"orders": "unused"})


def check(names: dict[str, Any]) -> None:
    del sys.modules["shop"], sys.modules["shop.flow"]
    assert "test_totals_survive_kills" in names
