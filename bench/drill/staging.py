"""A separate installation for the drill, the servers that its pipelines need, and one pipeline.

Django has to be loaded in the environment of that installation.
"""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
from django.conf import settings
from django.utils import timezone

from bench.benchmark import progress
from bench.drill.flow import FLOW, KAFKA, POSTGRES, REDIS
from ftdash.embedded.demo import Account, provide_accounts, start
from ftdash.embedded.installation import free_port, own_mark
from ftdash.embedded.outcome import Console
from ftdash.embedded.stack import web_address
from ftdash.embedded.supervisor import LEDGER_NAME, Ledger, Supervisor, wait_until
from ftdash.incidents.models import Incident
from ftdash.jobs.models import DesiredState, Run
from ftdash.requests import services
from ftdash.supervision.launcher import kill_driver_tree
from pipelines.domain.errors import Rejected
from pipelines.domain.status import JobStatus
from tests.brokers.kafka_broker import KafkaBroker, kafka_broker
from tests.brokers.redis_broker import RedisBroker, redis_broker
from tests.java_programs import ProgramMissing
from tests.new_home import new_home
from tests.object_server import ObjectServer, object_server
from tests.own_flows import declare
from tests.postgres_server import PostgresServer, postgres_server

STARTED_WITHIN_S = 300.0
ENDED_WITHIN_S = 40.0
PARALLELISM = 2
CHECKPOINTS_BEFORE = 3
DISK_BYTES = 8 << 20
PREPARED_MAX = 32  # a two-phase sink needs two for each subtask
ROOT = "drill"
"""The directory, in the home, of the pipelines' levers, input and output."""


@dataclass(slots=True)
class Servers:
    """The servers that the chosen incidents need; the others are None."""

    redis: RedisBroker | None = None
    postgres: PostgresServer | None = None
    kafka: KafkaBroker | None = None
    objects: ObjectServer | None = None
    missing: dict[str, str] = field(default_factory=dict)  # why a server does not start


@dataclass(frozen=True, slots=True)
class Installation:
    home: Path
    port: int
    admin: Account
    supervisor: Supervisor
    servers: Servers

    @property
    def address(self) -> str:
        return web_address(self.port)

    def kill(self, *parts: str) -> None:
        for part in parts:
            process = psutil.Process(self.supervisor.pid_of(part))
            family = [process, *process.children(recursive=True)]
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()

    def revive(self) -> None:
        """Restarts the dead parts, and waits until all parts answer."""
        self.supervisor.revive()


@contextmanager
def installation(home: Path, needs: Collection[str]) -> Iterator[Installation]:
    """Starts an installation with all its processes, and ends them with the block."""
    declare(FLOW.name, "bench.drill.flow")
    with ExitStack() as stack:
        servers = _servers(stack, home, needs)
        console = Console()
        ledger = Ledger(home / LEDGER_NAME, own_mark())
        new_home(home)
        supervisor = stack.enter_context(Supervisor(ledger, home / "logs", progress))
        port = free_port()
        start(supervisor, console, port, iter(()))
        admin = provide_accounts(new_passwords=True)[0]
        yield Installation(home, port, admin, supervisor, servers)


def _servers(stack: ExitStack, home: Path, needs: Collection[str]) -> Servers:
    """Starts the servers, and puts their addresses into the environment, which drivers inherit."""
    found = Servers()
    for name in sorted(set(needs) & set(_STARTS)):
        try:
            _STARTS[name](stack, home, found)
        except (OSError, RuntimeError, ProgramMissing) as error:
            found.missing[name] = f"not staged: {name} does not start: {str(error).splitlines()[0]}"
    return found


def _redis(stack: ExitStack, home: Path, found: Servers) -> None:
    (home / "source-redis").mkdir()
    found.redis = stack.enter_context(redis_broker(home / "source-redis"))
    os.environ[REDIS] = found.redis.url


def _postgres(stack: ExitStack, home: Path, found: Servers) -> None:
    found.postgres = stack.enter_context(postgres_server(max_prepared_transactions=PREPARED_MAX))
    os.environ[POSTGRES] = found.postgres.url_of("drill")


def _kafka(stack: ExitStack, home: Path, found: Servers) -> None:
    (home / "kafka").mkdir()
    found.kafka = stack.enter_context(kafka_broker(home / "kafka"))
    os.environ[KAFKA] = found.kafka.bootstrap_servers


def _objects(stack: ExitStack, home: Path, found: Servers) -> None:
    found.objects = stack.enter_context(object_server())
    os.environ.update(found.objects.environment)


_STARTS = {"redis": _redis, "postgres": _postgres, "kafka": _kafka, "objects": _objects}


@dataclass(frozen=True, slots=True)
class Staged:
    """One running pipeline, and the means to stage an incident on it."""

    name: str
    place: Path  # of its levers, its input and its output
    site: Installation

    def pull(self, lever: str, text: str = "") -> float:
        (self.place / lever).write_text(text)
        return time.monotonic()

    @property
    def run(self) -> Run:
        return Run.objects.filter(pipeline__name=self.name).latest("number")

    @property
    def checkpoints(self) -> list[Path]:
        """Returns the complete checkpoints, oldest first."""
        found = (settings.JOBS_ROOT / self.name).glob("runs/*/checkpoints/chk-*/manifest.json")
        return sorted((each.parent for each in found), key=lambda each: each.stat().st_mtime_ns)

    def slot(self, number: int = 0) -> psutil.Process:
        """Waits until the slot lives: on a busy machine the run may have lost it meanwhile."""
        living: list[psutil.Process] = []

        def lives(run: Run) -> bool:
            if run.status != "RUNNING" or str(number) not in run.slots:
                return False
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(run.slots[str(number)]["pid"])
                if process.status() != psutil.STATUS_ZOMBIE:
                    living.append(process)
            return bool(living)

        self.wait(lives)
        return living[0]

    def kill_driver(self) -> float:
        psutil.Process(self.run.driver_pid).kill()
        return time.monotonic()

    def wait(self, holds: Callable[[Run], bool], within_s: float = STARTED_WITHIN_S) -> None:
        def is_so() -> bool:
            return holds(self.run)

        wait_until(is_so, within_s=within_s, otherwise=lambda: f"{self.name}: {self.run.status}")

    def wait_runs(self, checkpoints: int = CHECKPOINTS_BEFORE) -> None:
        before = self.run.last_checkpoint_id or 0
        self.wait(
            lambda run: (
                run.status == "RUNNING" and (run.last_checkpoint_id or 0) >= before + checkpoints
            )
        )


class Needs(Protocol):
    """The start values of a pipeline of the drill.

    `disk` is the directory, within that of the pipeline, that becomes a small disk; empty means
    none.
    """

    @property
    def settings(self) -> dict[str, str]: ...
    @property
    def parameters(self) -> dict[str, str]: ...
    @property
    def disk(self) -> str: ...
    @property
    def needs(self) -> str:
        """Returns the name of the server that the pipeline needs, or an empty text if none."""
        ...

    @property
    def prepare(self) -> Callable[[Staged], None]: ...


@contextmanager
def running(site: Installation, name: str, needs: "Needs") -> Iterator[Staged]:
    """Runs a pipeline. Raises Rejected if this machine does not have what the pipeline needs."""
    if needs.needs in site.servers.missing:
        raise Rejected(site.servers.missing[needs.needs])
    staged = Staged(name, site.home / ROOT / name, site)
    staged.place.mkdir(parents=True)
    given = {key: value.format(place=staged.place) for key, value in needs.settings.items()}
    with small_disk(staged.place / needs.disk if needs.disk else None):
        needs.prepare(staged)
        services.submit_pipeline(
            name=name,
            flow=FLOW.name,
            requester="drill",
            reason="the drill",
            parallelism=PARALLELISM,
            parameters={"place": str(staged.place), **needs.parameters},
            settings={"execution.checkpointing.interval": "1 s", **given},
            allows_faults=True,
        )
        try:
            yield staged
        finally:
            end(staged)


def end(staged: Staged) -> None:
    """Ends the pipeline as if a person had stopped it, and closes its incidents.

    Otherwise the next incident with the same cause would share its line.
    """
    runs = Run.objects.filter(pipeline__name=staged.name)
    runs.update(desired=DesiredState.STOPPED)
    for run in runs:
        kill_driver_tree(run)
    runs.update(status=JobStatus.CANCELED.value)
    Incident.objects.filter(pipeline__name=staged.name).update(closed_at=timezone.now())


@contextmanager
def small_disk(place: Path | None) -> Iterator[None]:
    """Mounts a small disk. Raises Rejected if this account may not mount one."""
    if place is None:
        yield
        return
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        raise Rejected("not staged: a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
