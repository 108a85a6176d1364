"""Made-up page views: what they look like, and which ones a seed makes.

A view follows from (seed, split, number) alone. So whoever appends them to a log can go on where it
stopped by asking the log how many it has, and the right counts can be had without the log.
"""

import numpy as np
import pyarrow as pa

from pipelines.connectors.generator import Draws

VIEWS = pa.schema(
    [
        ("user_id", pa.int64()),
        ("app_id", pa.string()),
        ("page", pa.string()),
        ("at", pa.timestamp("ms", tz="UTC")),
    ]
)
OUT_OF_ORDER_MS = 1_000
"""How far the time of a view may lie behind that of one before it in the same split."""

FIRST_MS = 1_767_225_600_000  # the first moment of 2026
STEP_MS = 10
"""From one view of a split to the next, on average."""

APPS = pa.array([f"app-{number:02}" for number in range(20)])
PAGES = pa.array(["/", "/search", "/item", "/item/reviews", "/cart", "/checkout", "/help"])
USERS = 100_000


def page_views(seed: int, split: int, first: int, end: int) -> pa.RecordBatch:
    """Those with the numbers from `first` up to but not `end`."""
    draws = Draws(seed, split, np.arange(first, end, dtype=np.int64))
    lateness_ms = draws.integers("lateness", 0, OUT_OF_ORDER_MS)
    at_ms = FIRST_MS + draws.offsets * STEP_MS + OUT_OF_ORDER_MS - lateness_ms
    columns = [
        pa.array(draws.integers("user", 0, USERS)),
        APPS.take(pa.array(_apps(draws))),
        PAGES.take(pa.array(draws.integers("page", 0, len(PAGES)))),
        pa.array(at_ms).cast(VIEWS.field("at").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=VIEWS)


def _apps(draws: Draws) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Some apps are viewed far more than others."""
    one, other = (draws.integers(name, 0, len(APPS)) for name in ("app", "rival"))
    return np.minimum(one, other)
