"""A Spark standalone cluster of the pip package, each machine a network namespace of its own.

A machine has its own address, its own loopback and a cable to a switch. The machines share the file
system, like machines with a shared directory. A test can cut a machine's cable and kill everything
that runs on it. Needs root and iproute2.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import psutil
import pyspark

from ftdash.supervision.java import environment as java_environment
from tests import spark_classes

MASTER_PORT = 7077  # in the master's own namespace, so it is always free
START_TIMEOUT_S = 60.0
POLL_S = 0.05
CORES, MEMORY = 2, "1g"
HIDING = ("sh", "-c", 'mount -t tmpfs -o ro none "$0" && exec "$@"')
"""Hides a directory with an empty mount. `ip netns exec` gives each command its own mounts."""


class CannotHaveCluster(Exception):
    """This machine allows no network namespaces; the message says which step it refused."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace. `address` is reachable from every other machine of the cluster."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Returns `words` as a command that runs on this machine."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(int(pid)) for pid in ip("netns", "pids", self.namespace).split()]

    def unplug(self) -> None:
        """Cuts the cable.

        From now on no packet leaves or reaches it, and no process hears of that.
        """
        ip("-n", self.namespace, "link", "set", "cable", "down")

    def kill(self, named: Callable[[list[str]], bool] = lambda command: True) -> int:
        """Sends SIGKILL to everything on it, or to processes with such a command line.

        Returns how many.
        """
        killed = 0
        for process in self.processes():
            with _already_gone():
                if named(process.cmdline()):
                    process.send_signal(signal.SIGKILL)
                    killed += 1
        return killed


@dataclass(frozen=True, slots=True)
class Cluster:
    master: Machine
    workers: tuple[Machine, ...]
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"spark://{self.master.address}:{MASTER_PORT}"


def is_executor(command: list[str]) -> bool:
    return any("CoarseGrainedExecutorBackend" in word for word in command)


@contextmanager
def standalone_cluster(
    directory: Path, workers: int = 2, hidden: Path | None = None
) -> Iterator[Cluster]:
    """Starts a cluster. `hidden` is a directory that the first worker sees as an empty one.

    Raises CannotHaveCluster. Ends every process and removes every namespace that it made.
    """
    with ExitStack() as undo:
        machines = _wired(undo, 1 + workers)
        master, *others = machines
        environment = _environment(directory, workers)
        started = [
            _start_master(undo, master, environment, directory),
            *(
                _start_worker(undo, each, master, environment, directory, seen_empty)
                for each, seen_empty in zip_longest(others, [hidden])
            ),
        ]
        log = directory / f"{master.namespace}.log"
        _wait_for(lambda: log.read_text().count("Registering worker") == workers, started, log)
        yield Cluster(master, tuple(others), environment)


def ip(*words: str) -> str:
    """Runs `ip`. Raises CannotHaveCluster with its error message."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise CannotHaveCluster("There is no `ip`; install iproute2.") from None
    except subprocess.CalledProcessError as error:
        raise CannotHaveCluster(f"`ip {' '.join(words)}`: {error.stderr.strip()}") from error
    return done.stdout


def _wired(undo: ExitStack, count: int) -> list[Machine]:
    """Makes `count` machines on one switch, which is in the first of them."""
    name = f"ftdash-{secrets.token_hex(3)}"
    machines = [Machine(f"{name}-{index}", f"10.99.0.{index + 1}") for index in range(count)]
    for machine in machines:
        ip("netns", "add", machine.namespace)
        undo.callback(_remove, machine)
        ip("-n", machine.namespace, "link", "set", "lo", "up")
    switch = machines[0].namespace
    ip("-n", switch, "link", "add", "switch", "type", "bridge")
    ip("-n", switch, "addr", "add", f"{machines[0].address}/24", "dev", "switch")
    ip("-n", switch, "link", "set", "switch", "up")
    for index, machine in enumerate(machines[1:]):
        _plug_in(machine, switch, f"port{index}")
    return machines


def _plug_in(machine: Machine, switch: str, port: str) -> None:
    own = ("-n", machine.namespace)
    ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "cable", "netns",
       machine.namespace)  # fmt: skip
    ip("-n", switch, "link", "set", port, "master", "switch", "up")
    ip(*own, "addr", "add", f"{machine.address}/24", "dev", "cable")
    ip(*own, "link", "set", "cable", "up")


def _remove(machine: Machine) -> None:
    machine.kill()
    psutil.wait_procs(machine.processes(), timeout=10)
    ip("netns", "del", machine.namespace)


def _environment(directory: Path, workers: int) -> dict[str, str]:
    """Returns variables for Spark.

    Its own connections prove a secret that only these processes can read.
    """
    configuration = directory / "conf"
    configuration.mkdir()
    defaults = configuration / "spark-defaults.conf"
    defaults.touch(0o600)
    defaults.write_text(
        f"spark.authenticate true\nspark.authenticate.secret {secrets.token_hex(16)}\n"
        f"spark.executor.memory {MEMORY}\nspark.master.rest.enabled false\n"
        # Spark places slots once every worker is there, so that each worker gets some.
        f"spark.cores.max {CORES * workers}\nspark.scheduler.minRegisteredResourcesRatio 1.0\n"
        f"{spark_classes.OF_EXECUTORS} {os.environ.get(spark_classes.OPTIONS, '')}\n"
    )
    return {**os.environ, **java_environment(), "SPARK_CONF_DIR": str(configuration)}


def _start_master(
    undo: ExitStack, machine: Machine, environment: dict[str, str], directory: Path
) -> "subprocess.Popen[bytes]":
    words = ["deploy.master.Master", "--host", machine.address, "--port", str(MASTER_PORT)]
    return _start(undo, machine, [*words, "--webui-port", "0"], environment, directory)


def _start_worker(
    undo: ExitStack,
    machine: Machine,
    master: Machine,
    environment: dict[str, str],
    directory: Path,
    hidden: Path | None,
) -> "subprocess.Popen[bytes]":
    words = ["deploy.worker.Worker", "--host", machine.address, "--webui-port", "0"]
    limits = ["--cores", str(CORES), "--memory", MEMORY]
    place = ["--work-dir", str(directory / machine.namespace)]
    url = f"spark://{master.address}:{MASTER_PORT}"
    return _start(undo, machine, [*words, *limits, *place, url], environment, directory, hidden)


def _start(
    undo: ExitStack,
    machine: Machine,
    words: list[str],
    environment: dict[str, str],
    directory: Path,
    hidden: Path | None = None,
) -> "subprocess.Popen[bytes]":
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    program = [str(spark_class), f"org.apache.spark.{words[0]}", *words[1:]]
    command = machine.command(*(program if hidden is None else [*HIDING, str(hidden), *program]))
    with open(directory / f"{machine.namespace}.log", "ab") as log:
        # Without SPARK_LOCAL_IP its web page would listen on every interface of the machine.
        process = subprocess.Popen(
            command,
            env=environment | {"SPARK_LOCAL_IP": machine.address},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    undo.callback(process.wait, 10)
    undo.callback(machine.kill)
    return process


def _wait_for(
    holds: Callable[[], bool], processes: "list[subprocess.Popen[bytes]]", log: Path
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not holds():
        dead = [process for process in processes if process.poll() is not None]
        if dead or time.monotonic() > deadline:
            raise TimeoutError(f"The cluster is not up: {log.read_text()[-3000:]}")
        time.sleep(POLL_S)


@contextmanager
def _already_gone() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess:
        return
