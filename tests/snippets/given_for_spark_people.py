"""One order to read, and a run of the page's pipeline."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines.local import run_local

Path("orders").mkdir()
Path("orders/orders.jsonl").write_text(
    '{"product": "tea", "price": 2.5, "at": "2026-01-01T12:00:00Z"}\n'
)


def check(names: dict[str, Any]) -> None:
    run_local(names["env"].build())

    (row,) = pq.read_table("totals").to_pylist()
    assert (row["product"], row["orders"], row["price"]) == ("tea", 1, 2.5)
