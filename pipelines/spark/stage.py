"""Runs slots as one Spark barrier stage per attempt: Spark places, starts and isolates them.

Spark never retries a failed barrier result stage. That is what the engine needs, because the job
master has the restart strategy. The start does not use `barrier()` or `allGather()`, which sleep
about a second each; slots dial the control address from the task's closure.

The driver's Spark session has no UI and restarts nothing by itself. It is bound to loopback unless
the settings name other addresses.

On YARN, Spark's driver starts once the ResourceManager has started an application master for it.
Spark waits without a limit; here `slot.request.timeout` limits the wait, and a person may cancel
the run.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import BarrierTaskContext, InheritableThread, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines.connectors.files.data_frame import DataFrameRows
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.run import DriverNetworking, RunSpec
from pipelines.flows.finding import VARIABLE, declared_flows
from pipelines.packages.wheel import FILE, pack_engine
from pipelines.runtime.master.job_events import JobEvent, StageEnded
from pipelines.runtime.master.run_context import StartGivenUp
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.slot import run_slot
from pipelines.spark.daemon import PIPELINE
from pipelines.spark.data_frames import keep_rows

if TYPE_CHECKING:
    from pipelines.domain.ids import Attempt


class SparkStageHost:
    """Implements `StageHost` and `KeepsDataFrames` of `pipelines.runtime.master.run_context`."""

    def __init__(self, session: SparkSession, post: Callable[[JobEvent], None]) -> None:
        self._session = session
        self._context = session.sparkContext
        self._post = post
        self._threads: dict[Attempt, InheritableThread] = {}

    def keep_rows(self, source: DataFrameRows) -> int:
        return keep_rows(self._session, source)

    def start(self, address: SlotAddress, slot_count: int) -> None:
        thread = InheritableThread(target=self._run, args=(address, slot_count), daemon=True)
        self._threads[address.attempt] = thread
        thread.start()

    def cancel(self, address: SlotAddress) -> None:
        self._context.cancelJobGroup(_group(address))

    def wait(self, timeout_s: float) -> None:
        """Waits until every stage has ended, so that the session can be stopped."""
        for thread in self._threads.values():
            thread.join(timeout_s)

    def _run(self, address: SlotAddress, slot_count: int) -> None:
        self._context.setJobGroup(_group(address), f"attempt {address.attempt}", True)
        slots = self._context.parallelize(range(slot_count), slot_count).barrier()
        try:
            slots.mapPartitions(_slot_task(address)).collect()
        except Exception as error:  # Spark may raise anything; the master decides
            lines = str(error).strip().splitlines()
            self._post(StageEnded(address.attempt, lines[0] if lines else type(error).__name__))
        else:
            self._post(StageEnded(address.attempt, ""))


def _slot_task(address: SlotAddress) -> Callable[[Iterator[int]], Iterator[int]]:
    def serve(partition: Iterator[int]) -> Iterator[int]:
        del partition  # the records of a stream do not come from Spark
        packages = Path(SparkFiles.getRootDirectory())
        run_slot(address, BarrierTaskContext.get().partitionId(), packages)
        return iter(())

    return serve


def _group(address: SlotAddress) -> str:
    return f"attempt-{address.attempt}"


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
    # Spark would place slots on a machine that has vanished until it notices that, which takes two
    # minutes by default.
    "spark.executor.heartbeatInterval": "5s",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "5s",
}
SOURCE_ROOT = Path(__file__).parents[2]


def is_one_machine(master: str) -> bool:
    """Returns True if the slots of this master see the driver's files."""
    return master.startswith("local")


def open_session(
    spec: RunSpec,
    networking: DriverNetworking,
    within_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> SparkSession:
    """Opens the only session of a driver process.

    `within_s`: how long YARN may take to start the application. Spark's own driver gets the
    addresses of the run's control port. Raises Rejected if Spark does not start, and StartGivenUp
    if the run is cancelled before YARN has started it.
    """
    master = spec.master
    check_configured(master)
    builder = SparkSession.builder.master(master).appName(f"{spec.pipeline} {spec.run_id}")
    addresses = {
        "spark.driver.host": networking.host,
        "spark.driver.bindAddress": networking.bind_host,
    }
    settings = SETTINGS | addresses | ({} if is_one_machine(master) else CLUSTER_SETTINGS)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if is_one_machine(master):  # otherwise its workers and executors listen on every interface
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = builder.config("spark.executorEnv.PYTHONPATH", _python_path(master))
    builder = builder.config(f"spark.executorEnv.{PIPELINE}", spec.pipeline)
    if VARIABLE in os.environ:  # slots find the pipeline by the same names
        builder = builder.config(f"spark.executorEnv.{VARIABLE}", os.environ[VARIABLE])
    os.environ["PYTHONPATH"] = _python_path("local")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the slots' interpreter is this one
    session = started(builder.getOrCreate, master, within_s, is_cancelled)
    session.sparkContext.setLogLevel("ERROR")
    if not is_one_machine(master):
        send_engine(session)
    return session


def send_engine(session: SparkSession) -> None:
    """Sends the engine to the working directory of each executor, the first on its PYTHONPATH."""
    place = Path(SparkFiles.getRootDirectory()) / "sent"  # Spark deletes it when the driver ends
    place.mkdir()
    session.sparkContext.addFile(str(pack_engine(place, declared_flows())))


def _python_path(master: str) -> str:
    """Includes the driver's paths, so that slots find authors' packages that are not installed."""
    inherited = os.environ.get("PYTHONPATH", "")
    paths = [str(SOURCE_ROOT), *(path for path in inherited.split(os.pathsep) if path)]
    sent = [] if is_one_machine(master) else [FILE]
    return os.pathsep.join(dict.fromkeys([*sent, *paths]))


YARN = "yarn"
CONFIGURATION = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
SITE = "yarn-site.xml"
TURN_S = 0.2
"""How often the wait for YARN looks for a cancellation."""

Started = TypeVar("Started")


def check_configured(master: str) -> None:
    """Raises Rejected if the driver cannot know where YARN is."""
    if master != YARN:
        return
    named = {name: os.environ[name] for name in CONFIGURATION if os.environ.get(name)}
    if not named:
        raise Rejected(
            "The master is yarn, and HADOOP_CONF_DIR is not set. Set it to the directory that holds"
            f" {SITE}, where the workers of ftdash start, and start the run again."
        )
    if not any((Path(directory) / SITE).is_file() for directory in named.values()):
        where = " or ".join(f"{directory} ({name})" for name, directory in named.items())
        raise Rejected(
            f"The master is yarn, and there is no {SITE} in {where}; copy the configuration of the"
            " cluster there, and start the run again."
        )


def started(
    start: Callable[[], Started],
    master: str,
    within_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Started:
    """Returns the result of `start`. If a start on YARN is given up, it continues in its thread
    until this process ends.

    Raises:
        Rejected: Spark does not start there now; the cause is a Retryable.
        StartGivenUp: the run was cancelled before YARN had started the application.
    """
    try:
        if master != YARN:
            return start()
        thread = ThreadPoolExecutor(1, thread_name_prefix="spark-start")
        starting = thread.submit(start)
        thread.shutdown(wait=False)
        for _ in range(math.ceil(within_s / TURN_S)):
            if wait([starting], min(TURN_S, within_s)).done:
                return starting.result()
            if is_cancelled():
                raise StartGivenUp
        raise TimeoutError
    except TimeoutError:
        why = (
            f"YARN has not started the application of this run within {within_s:g} s"
            " (slot.request.timeout): its ResourceManager does not answer, or its queue is full."
            " Look at the queue with `yarn application -list`, and start the run again."
        )
    except (Py4JJavaError, PySparkException) as error:
        why = f"Spark does not start on {master}: {_first_line(error)}"
    raise Rejected(why) from Retryable(why)


def _first_line(error: Py4JJavaError | PySparkException) -> str:
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    return text.strip().partition("\n")[0]
