"""Opens the Spark session of a driver: no UI, nothing that restarts by itself.

Bound to loopback unless the settings name other addresses.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.domain.run import DriverNetworking

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    # A barrier stage waits for all of its slots; look for them every second, not every 15.
    "spark.barrier.sync.timeout": "60s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "30",
    "spark.dynamicAllocation.enabled": "false",
    "spark.speculation": "false",
    # A worker of an attempt that is over must not be handed to the next one.
    "spark.python.worker.reuse": "false",
    "spark.python.daemon.module": "pipelines.spark.daemon",
    "spark.python.task.killTimeout": "200ms",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.stage.maxConsecutiveAttempts": "1",
}
CLUSTER_SETTINGS = {
    # Spark would place slots on a machine that has vanished for as long as it believes in it, which
    # is two minutes by default.
    "spark.executor.heartbeatInterval": "5s",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "5s",
}
SOURCE_ROOT = Path(__file__).parents[2]


def open_session(master: str, application: str, networking: DriverNetworking) -> SparkSession:
    """One per driver process. The flows' code reaches executors by PYTHONPATH.

    Spark's own driver has the addresses of the run's control port.
    """
    builder = SparkSession.builder.master(master).appName(application)
    addresses = {
        "spark.driver.host": networking.host,
        "spark.driver.bindAddress": networking.bind_host,
    }
    is_one_machine = master.startswith("local")
    settings = SETTINGS | addresses | ({} if is_one_machine else CLUSTER_SETTINGS)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if is_one_machine:  # or its workers and executors listen on every interface
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = builder.config("spark.executorEnv.PYTHONPATH", _python_path())
    os.environ["PYTHONPATH"] = _python_path()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the slots' interpreter is this one
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH", "")
    paths = [str(SOURCE_ROOT), *(path for path in inherited.split(os.pathsep) if path)]
    return os.pathsep.join(dict.fromkeys(paths))
