"""The Spark host: runs one barrier stage per attempt, and reads state as a DataFrame.

The only package that imports pyspark.
"""

from pipelines.spark.data_frames import read_state

__all__ = ["read_state"]
