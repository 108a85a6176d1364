"""An environment, and what the page imports."""

from pathlib import Path

import pyarrow as pa

from pipelines.connectors import DataFrameRows, JsonValues, KafkaAddress, KafkaTopics
from pipelines.stream import Environment

__all__ = ["DataFrameRows", "JsonValues", "KafkaAddress", "KafkaTopics", "Path", "pa"]

env = Environment()
