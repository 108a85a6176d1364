"""A stream that goes into the page's sinks."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.connectors import (
    JSON_LINES,
    ExactlyOnceFiles,
    ExactlyOnceKafka,
    KafkaAddress,
    KafkaUpsert,
)
from pipelines.stream import Environment

__all__ = [
    "JSON_LINES",
    "ExactlyOnceFiles",
    "ExactlyOnceKafka",
    "KafkaAddress",
    "KafkaUpsert",
    "Path",
    "timedelta",
]

env = Environment()
delays = env.from_arrow(pa.table({"carrier": ["UA"], "delay": [1.5]}), uid="delays")


def check(names: dict[str, Any]) -> None:
    assert {"delay-files", "delay-lines"} <= set(env.build().sinks)
