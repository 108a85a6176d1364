"""Reports of a listener, as Spark would make them, for the tests of watched queries."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.test import Client

from ftdash.accounts.models import TokenScope
from tests.web.api_callers import bearer

QUERY = "11111111-aaaa-4444-8888-000000000001"
OTHER = "99999999-aaaa-4444-8888-000000000009"
THIRD = "55555555-aaaa-4444-8888-000000000005"
RUN = "22222222-aaaa-4444-8888-000000000001"
EVENTS = "/api/watched-queries/events"
BEGAN = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)
LISTENER = "0123456789abcdef"


def progress(
    batch_id: int,
    *,
    query: str = QUERY,
    run: str = RUN,
    at: datetime | None = None,
    rows: int = 1_000,
    took_ms: int = 800,
    name: str = "orders",
    lag: int = 240,
) -> dict[str, Any]:
    """Returns one batch of a stateful query over Kafka, ten seconds after the one before."""
    began = at or BEGAN + timedelta(seconds=10 * batch_id)
    return {
        "kind": "progress",
        "progress": {
            "id": query,
            "runId": run,
            "name": name,
            "timestamp": written(began),
            "batchId": batch_id,
            "batchDuration": took_ms,
            "numInputRows": rows,
            "inputRowsPerSecond": rows / 10,
            "processedRowsPerSecond": rows / took_ms * 1000,
            "durationMs": {
                "addBatch": took_ms - 200,
                "walCommit": 60,
                "commitOffsets": 50,
                "queryPlanning": 40,
                "latestOffset": 30,
                "getBatch": 5,
                "triggerExecution": took_ms,
            },
            "eventTime": {"watermark": written(began - timedelta(minutes=10))},
            "stateOperators": [
                {
                    "operatorName": "stateStoreSave",
                    "numRowsTotal": 4_000 + 10 * batch_id,
                    "numRowsUpdated": 90,
                    "numRowsRemoved": 80,
                    "memoryUsedBytes": 2_500_000 + 1_000 * batch_id,
                    "numRowsDroppedByWatermark": 3,
                    "numShufflePartitions": 4,
                    "numStateStoreInstances": 4,
                    "commitTimeMs": 120,
                    "customMetrics": {
                        "loadedMapCacheHitCount": 40,
                        "SnapshotLastUploaded.partition_0_default": 3,
                    },
                }
            ],
            "sources": [
                {
                    "description": "KafkaV2[Subscribe[orders]]",
                    "startOffset": {"orders": {"0": 100, "1": 90}},
                    "endOffset": {"orders": {"0": 600, "1": 590}},
                    "latestOffset": {"orders": {"0": 600 + lag, "1": 590}},
                    "numInputRows": rows,
                    "inputRowsPerSecond": rows / 10,
                    "processedRowsPerSecond": 1_200.0,
                }
            ],
            "sink": {"description": "FileSink[/data/out]", "numOutputRows": -1},
        },
    }


def said(kind: str, at: datetime, *, query: str = QUERY, run: str = RUN, **more: Any) -> Any:
    return {"kind": kind, "id": query, "runId": run, "timestamp": written(at), **more}


def written(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def listener(name: str = "job") -> Client:
    return bearer(TokenScope.LISTEN, name)


def report(client: Client, *events: Any, **more: Any) -> Any:
    """Sends one report and returns the answer."""
    body = {"events": events, "listener": LISTENER, **more}
    return client.post(EVENTS, json.dumps(body), content_type="application/json")


ROWS_OF_A_BATCH = 1_200


def checkpoint_at(directory: Path, query: str, *, batches: int, began: datetime) -> Path:
    """Writes a checkpoint of a stateless query over Kafka, as Spark writes it."""
    for folder in ("offsets", "commits"):
        (directory / folder).mkdir(parents=True)
    (directory / "metadata").write_text(json.dumps({"id": query}))
    for number in range(batches):
        planned = began + timedelta(seconds=10 * number)
        head = {
            "batchWatermarkMs": 0,
            "batchTimestampMs": round(planned.timestamp() * 1000),
            "conf": {"spark.sql.shuffle.partitions": "4"},
        }
        offset = {"orders": {"0": ROWS_OF_A_BATCH * (number + 1)}}
        lines = ["v1", json.dumps(head), json.dumps(offset)]
        (directory / "offsets" / str(number)).write_text("\n".join(lines))
        commit = directory / "commits" / str(number)
        commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
        at = planned.timestamp() + 0.8
        os.utime(commit, (at, at))
    return directory
