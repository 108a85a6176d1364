"""An environment, and what the page imports."""

from pathlib import Path

import pyarrow as pa

from pipelines.connectors import (
    DataFrameRows,
    ExactlyOnceKafka,
    JsonValues,
    KafkaAddress,
    KafkaTopics,
)
from pipelines.stream import Environment

__all__ = [
    "DataFrameRows",
    "ExactlyOnceKafka",
    "JsonValues",
    "KafkaAddress",
    "KafkaTopics",
    "Path",
    "pa",
]

env = Environment()
