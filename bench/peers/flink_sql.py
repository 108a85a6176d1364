"""The count of `pv` as a Flink SQL job, exactly once, checkpointed every second.

Usage: flink_sql.py DIRECTORY app_id|user_id hashmap|rocksdb SCRATCH, with a Python that has
apache-flink. It has two slots, and as much memory for RocksDB as ours. The clock runs from the
moment at which the job runs, without the start of the JVM and the cluster, to its end.
"""

import json
import sys
import threading
import time
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment, TableResult

PARALLELISM = 2
POLL_S = 0.02
SETTINGS = {
    "parallelism.default": str(PARALLELISM),
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "taskmanager.memory.managed.size": f"{PARALLELISM * 256} mb",
}
SOURCE = """
CREATE TABLE events (app_id BIGINT, user_id BIGINT, ts BIGINT)
WITH ('connector' = 'filesystem', 'path' = 'file://{directory}', 'format' = 'csv')
"""
SINK = "CREATE TABLE nowhere (k BIGINT, pv BIGINT) WITH ('connector' = 'blackhole')"
COUNT = "INSERT INTO nowhere SELECT {key}, COUNT(*) FROM events GROUP BY {key}"


def main(directory: str, key: str, backend: str, scratch: str) -> None:
    checkpoints = Path(scratch) / "checkpoints"
    tables = environment(backend, checkpoints)
    tables.execute_sql(SOURCE.format(directory=directory))
    tables.execute_sql(SINK)
    counter = CheckpointCounter(checkpoints)
    counter.start()
    result = tables.execute_sql(COUNT.format(key=key))
    while status(result) in ("INITIALIZING", "CREATED"):
        time.sleep(POLL_S)
    began_s = time.monotonic()
    result.wait()
    print(json.dumps({"seconds": time.monotonic() - began_s, "checkpoints": counter.newest}))


def status(result: TableResult) -> str:
    """Returns the status in Java's words, because PyFlink's enumeration has a missing member."""
    return result.get_job_client()._j_job_client.getJobStatus().get().toString()


def environment(backend: str, checkpoints: Path) -> TableEnvironment:
    configuration = Configuration()
    chosen = {
        "state.backend.type": backend,
        "execution.checkpointing.dir": f"file://{checkpoints}",
    }
    for name, value in {**SETTINGS, **chosen}.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    return TableEnvironment.create(settings.with_configuration(configuration).build())


class CheckpointCounter(threading.Thread):
    """Looks for completed checkpoints while the job runs, because Flink deletes them at its end."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self.newest = 0

    def run(self) -> None:
        while True:
            found = self._directory.glob("*/chk-*/_metadata")
            numbers = [int(path.parent.name.removeprefix("chk-")) for path in found]
            self.newest = max([self.newest, *numbers])
            time.sleep(10 * POLL_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
