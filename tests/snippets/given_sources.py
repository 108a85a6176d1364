"""An environment, and the names that the page imports."""

from pathlib import Path

import pyarrow as pa

from pipelines.connectors import (
    AvroValues,
    DataFrameRows,
    ExactlyOnceKafka,
    JsonValues,
    KafkaAddress,
    KafkaTopics,
    SchemaRegistry,
)
from pipelines.stream import Environment

__all__ = [
    "AvroValues",
    "DataFrameRows",
    "ExactlyOnceKafka",
    "JsonValues",
    "KafkaAddress",
    "KafkaTopics",
    "Path",
    "SchemaRegistry",
    "pa",
]

env = Environment()
broker = KafkaAddress("broker:9092")
password = "word"
