"""One query of Nexmark as a job of Flink SQL, exactly once, checkpointed every second.

Usage: flink_nexmark.py JSON, with a Python that has apache-flink. The object has `query`,
`directory` of the Parquet files, `backend`, `mini_batch`, `jars` (of Parquet and Hadoop),
`scratch` and `prints`. With `prints`, the result goes to standard output as a changelog, one line
for each change, instead of to a sink that drops it. Then no record is late, however the files are
dealt. It has two slots. The clock runs from the moment at which the job runs, without the start of
the JVM and the cluster.
"""

import json
import os
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

from nexmark_sql import KINDS, QUERIES, SIDE
from pyflink.common import Configuration
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment, TableResult

PARALLELISM = 2
POLL_S, LOOK_S = 0.02, 0.25
LATE_S, NEVER_LATE_S = 4, 99
TICKS = os.sysconf("SC_CLK_TCK")
SETTINGS = {
    "parallelism.default": str(PARALLELISM),
    "table.local-time-zone": "UTC",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": "true",
    "taskmanager.memory.managed.size": f"{PARALLELISM * 256} mb",
}
MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
"""The settings of the definition's own configuration."""


def main(options: dict[str, object]) -> None:
    name = str(options["query"])
    port = free_port()
    tables = environment(options, port)
    declare(tables, options)
    query = QUERIES[name]
    if options["prints"]:
        names = tables.sql_query(query).get_schema().get_field_names()
        texts = ", ".join(f"CAST(`{name}` AS STRING)" for name in names)
        print(json.dumps({"query": name, "columns": list(names)}), flush=True)
        query = f"SELECT JSON_ARRAY({texts} NULL ON NULL) AS line FROM ({query})"
    connector = "print" if options["prints"] else "blackhole"
    result = tables.execute_sql(f"CREATE TABLE ends WITH ('connector' = '{connector}') AS {query}")
    while status(result) in ("INITIALIZING", "CREATED"):
        time.sleep(POLL_S)
    java = Process(int(get_gateway().jvm.java.lang.ProcessHandle.current().pid()))
    looks = Looks(port, str(result.get_job_client().get_job_id()))
    looks.start()
    began_s, began_cpu_s = time.monotonic(), java.processor_s()
    result.wait()
    figures = {
        "query": name,
        "seconds": time.monotonic() - began_s,
        "cpu_s": java.processor_s() - began_cpu_s,
        "peak_bytes": java.peak_bytes(),
        **looks.newest,
    }
    print(json.dumps(figures), flush=True)


def environment(options: dict[str, object], port: int) -> TableEnvironment:
    jars = list(options["jars"])  # type: ignore[call-overload]
    chosen = {
        "state.backend.type": str(options["backend"]),
        "execution.checkpointing.dir": f"file://{options['scratch']}/checkpoints",
        "pipeline.jars": ";".join(f"file://{jar}" for jar in jars),
        "rest.port": str(port),
        **(MINI_BATCH if options["mini_batch"] else {}),
    }
    configuration = Configuration()
    for name, value in {**SETTINGS, **chosen}.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    return TableEnvironment.create(settings.with_configuration(configuration).build())


def declare(tables: TableEnvironment, options: dict[str, object]) -> None:
    late_s = NEVER_LATE_S if options["prints"] else LATE_S
    for kind, columns in KINDS.items():
        watermark = f"WATERMARK FOR date_time AS date_time - INTERVAL '{late_s}' SECOND"
        tables.execute_sql(
            f"CREATE TABLE {kind} ({columns}, {watermark}) WITH ('connector' = 'filesystem',"
            f" 'format' = 'parquet', 'path' = 'file://{options['directory']}/{kind}')"
        )
    tables.execute_sql(
        f"CREATE TABLE side_input ({SIDE}) WITH ('connector' = 'filesystem',"
        f" 'format' = 'parquet', 'path' = 'file://{options['directory']}/side')"
    )


def status(result: TableResult) -> str:
    """Returns the status in Java's words, because PyFlink's enumeration has a missing member."""
    return str(result.get_job_client()._j_job_client.getJobStatus().get().toString())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Process:
    """Measures a process through Linux's `/proc`."""

    def __init__(self, pid: int) -> None:
        self._place = Path("/proc") / str(pid)

    def processor_s(self) -> float:
        fields = (self._place / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_bytes(self) -> int:
        lines = (self._place / "status").read_text().splitlines()
        return next(int(each.split()[1]) << 10 for each in lines if each.startswith("VmHWM"))


class Looks(threading.Thread):
    """Looks at the job's checkpoints while it runs, because its interface ends with the job."""

    def __init__(self, port: int, job: str) -> None:
        super().__init__(daemon=True)
        self._address = f"http://127.0.0.1:{port}/jobs/{job}/checkpoints"
        self.newest = {"checkpoints": 0, "checkpoint_ms_p99": None, "state_bytes": 0}

    def run(self) -> None:
        while True:
            try:
                with urllib.request.urlopen(self._address, timeout=1) as answer:
                    self._take(json.load(answer))
            except OSError:
                pass  # the job has not begun, or is over
            time.sleep(LOOK_S)

    def _take(self, statistics: dict[str, dict[str, dict[str, float]]]) -> None:
        completed = int(statistics["counts"]["completed"])  # type: ignore[call-overload]
        if completed:
            self.newest = {
                "checkpoints": completed,
                "checkpoint_ms_p99": statistics["summary"]["end_to_end_duration"]["p99"],
                "state_bytes": statistics["summary"]["state_size"]["max"],
            }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
