"""The columns that the pipeline reads, passes on and writes."""

import pyarrow as pa

TIME = pa.timestamp("ms", tz="UTC")

ORDERS = pa.schema(
    [
        ("order", pa.int64()),
        ("customer", pa.string()),
        ("product", pa.string()),
        ("cents", pa.int64()),
        ("currency", pa.string()),
        ("at", TIME),
    ]
)

RATES = pa.schema([("currency", pa.string()), ("per_mille", pa.int64()), ("since", TIME)])
"""A row gives the price of a unit of the currency from `since` on, in thousandths of a euro."""

PRICED = pa.schema(
    [
        ("order", pa.int64()),
        ("customer", pa.string()),
        ("product", pa.string()),
        ("euro_cents", pa.int64()),
        ("at", TIME),
    ]
)

LOCATED = PRICED.append(pa.field("country", pa.string()))
