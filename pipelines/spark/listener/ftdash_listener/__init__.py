"""Reports the progress of the Structured Streaming queries of a session to an ftdash dashboard.

    from ftdash_listener import watch

    watch(spark, "https://ftdash.example.org", token)

Before you rewind a query with changed code, `explain(rows, "plan.json")` describes the state that
Spark would keep for it, so that the dashboard can compare it with the checkpoint.

Runs with pyspark 3.5 to 4.3, classic and Spark Connect, and with Python 3.8 and later.
"""

from ftdash_listener.explaining import CannotExplain, explain
from ftdash_listener.listener import ProgressListener, watch
from ftdash_listener.sending import VERSION, Reporter, Statistics

__version__ = VERSION
__all__ = [
    "CannotExplain",
    "ProgressListener",
    "Reporter",
    "Statistics",
    "explain",
    "watch",
]
