"""Reports the progress of the Structured Streaming queries of a session to an ftdash dashboard.

    from ftdash_listener import watch

    watch(spark, "https://ftdash.example.org", token)

Runs with pyspark 3.5 to 4.3, classic and Spark Connect, and with Python 3.8 and later.
"""

from ftdash_listener.listener import ProgressListener, watch
from ftdash_listener.sending import VERSION, Reporter, Statistics

__version__ = VERSION
__all__ = ["ProgressListener", "Reporter", "Statistics", "watch"]
