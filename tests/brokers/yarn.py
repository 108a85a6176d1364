"""A real Hadoop YARN on loopback: a ResourceManager and a NodeManager, from Maven Central.

Its containers are processes of this machine. YARN writes all its files in one directory. All ports
are free ones.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pyspark

from ftdash.embedded.installation import LOOPBACK, free_port
from ftdash.supervision.java import environment as java_environment
from tests.brokers.processes import ServerProcess
from tests.java_programs import JavaProgram

VERSION = "3.5.0"  # also the version of the Hadoop client among pyspark's jars
START_S, ANSWER_S, END_S = 90.0, 5.0, 20.0
MEMORY_MB, CORES = 4096, 4
YARN = JavaProgram(
    "YARN",
    VERSION,
    f"""
    <dependency>
      <groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-minicluster</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId>
      <version>1.7.36</version>
    </dependency>
    <dependency>
      <groupId>org.bouncycastle</groupId><artifactId>bcpkix-jdk18on</artifactId>
      <version>1.82</version>
    </dependency>
  """,
)
RESOURCE_MANAGER, NODE_MANAGER = "resourcemanager.ResourceManager", "nodemanager.NodeManager"
SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOGGING = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


@dataclass(frozen=True, slots=True)
class Yarn:
    """`environment` has the variables that a driver needs, as `docs/how-to/yarn.md` says."""

    environment: dict[str, str]
    page: str
    directory: Path
    undo: ExitStack

    def add_node(self) -> None:
        """Starts the NodeManager, and returns once YARN has room for containers."""
        self.undo.callback(_started(self.directory, NODE_MANAGER, self.has_node).kill)

    def is_up(self) -> bool:
        """Returns True if the ResourceManager answers."""
        return self._asked("info") is not None

    def has_node(self) -> bool:
        metrics = self._asked("metrics")
        return metrics is not None and metrics["clusterMetrics"]["activeNodes"] == 1

    def has_accepted(self) -> bool:
        """Returns True if an application waits for room."""
        asked = self._asked("apps")
        found = [] if asked is None else (asked["apps"] or {}).get("app", [])
        return any(each["state"] == "ACCEPTED" for each in found)

    def _asked(self, what: str) -> dict[str, Any] | None:
        """Returns the answer of the ResourceManager, or None if there is none."""
        try:
            with urlopen(f"http://{self.page}/ws/v1/cluster/{what}", timeout=ANSWER_S) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError:
            return None
        return found


@contextmanager
def yarn(directory: Path) -> Iterator[Yarn]:
    """Starts YARN without a node, so that it has no room for containers. Raises ProgramMissing.

    Ends every process that it or a container has started.
    """
    page = f"{LOOPBACK}:{free_port()}"
    with ExitStack() as undo:
        cluster = Yarn(written_configuration(directory, page), page, directory, undo)
        undo.callback(_end_containers, directory)
        undo.callback(_started(directory, RESOURCE_MANAGER, cluster.is_up).kill)
        yield cluster


def written_configuration(directory: Path, page: str = f"{LOOPBACK}:0") -> dict[str, str]:
    """Writes the configuration; returns the variables by which a driver finds it.

    Starts nothing.
    """
    configuration = directory / "conf"
    configuration.mkdir(parents=True)
    _write(configuration / "core-site.xml", {"fs.defaultFS": "file:///"})
    _write(configuration / "yarn-site.xml", _settings(directory, page))
    (configuration / "log4j.properties").write_text(LOGGING)
    defaults = "".join(f"{name} {value}\n" for name, value in _of_spark(directory).items())
    (configuration / "spark-defaults.conf").write_text(defaults)
    return _environment(configuration)


def _started(directory: Path, manager: str, answers: Callable[[], bool]) -> ServerProcess:
    """Starts a manager, with its configuration first in the class path."""
    command = YARN.command(f"org.apache.hadoop.yarn.server.{manager}")
    class_path = command.index("-cp") + 1
    command[class_path] = f"{directory / 'conf'}:{command[class_path]}"
    log = directory / f"{manager.partition('.')[0]}.log"
    server = ServerProcess(command, log, answers, within_s=START_S)
    server.start()
    return server


def _settings(directory: Path, page: str) -> dict[str, str]:
    master, node = "yarn.resourcemanager", "yarn.nodemanager"
    ports = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    return {
        **{f"{master}.{name}": f"{LOOPBACK}:{free_port()}" for name in ports},
        f"{master}.webapp.address": page,
        f"{master}.hostname": LOOPBACK,
        f"{master}.bind-host": LOOPBACK,
        f"{master}.nodemanagers.heartbeat-interval-ms": "100",
        f"{node}.hostname": LOOPBACK,
        f"{node}.bind-host": LOOPBACK,
        **{f"{node}.{name}": f"{LOOPBACK}:0" for name in ("address", "localizer.address")},
        f"{node}.webapp.address": f"{LOOPBACK}:0",
        f"{node}.local-dirs": str(directory / "local"),
        f"{node}.log-dirs": str(directory / "logs"),
        f"{node}.resource.memory-mb": str(MEMORY_MB),
        f"{node}.resource.cpu-vcores": str(CORES),
        f"{node}.pmem-check-enabled": "false",
        f"{node}.vmem-check-enabled": "false",
        f"{node}.disk-health-checker.enable": "false",
        f"{node}.env-whitelist": "JAVA_HOME",
        "yarn.scheduler.minimum-allocation-mb": "64",
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
        "hadoop.tmp.dir": str(directory / "tmp"),
    }


def _of_spark(directory: Path) -> dict[str, str]:
    """Asks for small containers that start soon, and no copy of the jars for each application."""
    jars = Path(pyspark.__file__).parent / "jars"
    return {
        "spark.executor.extraJavaOptions": SOON,
        "spark.yarn.am.extraJavaOptions": SOON,
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "512m",
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.yarn.stagingDir": (directory / "staging").as_uri(),
    }


def _environment(configuration: Path) -> dict[str, str]:
    return {
        **java_environment(),
        "HADOOP_CONF_DIR": str(configuration),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_IP": LOOPBACK,
    }


def _write(file: Path, settings: Mapping[str, str]) -> None:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>\n{rows}</configuration>\n")


def _end_containers(directory: Path) -> None:
    """Ends containers, which outlive a NodeManager that is killed."""
    place = str(directory / "local")
    found = {each: each.info["cwd"] or "" for each in psutil.process_iter(["cwd"])}
    left = [each for each, cwd in found.items() if cwd.startswith(place)]
    for process in left:
        process.kill()
    psutil.wait_procs(left, END_S)
