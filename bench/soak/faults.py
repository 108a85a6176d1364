"""Causes the faults of a schedule for real; it stages the drill's faults as the drill does.

Django has to be loaded in the environment of a separate installation.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import psutil

from bench.drill import incidents
from bench.drill.flow import CLOCK
from bench.drill.staging import STARTED_WITHIN_S, Servers, Staged
from bench.soak import network
from bench.soak.flow import COUNTS_POSTGRES, DOCUMENTS_FILES, REDIS_POSTGRES, VERSION, Code
from bench.soak.schedule import Fault, Planned
from ftdash.checkpoints.queries.checkpoints import recovery_points
from ftdash.embedded.supervisor import wait_until
from ftdash.jobs.models import OPEN_PHASES, Request, RequestPhase
from ftdash.points.services.restore import Restore, dispose, restore
from ftdash.requests import services
from pipelines.domain.commands import RunCommand, StopWithSavepoint, TakeSavepoint
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.status import ClaimMode
from tests import object_server

WHO = "soak"
ENDED_WITHIN_S = 300.0
DISK = "points"
"""The directory of a small disk for checkpoints, within the place of the pipeline `ON_DISK`."""

ON_DISK, IN_OBJECTS = REDIS_POSTGRES, COUNTS_POSTGRES
"""The pipelines whose checkpoints are on a small disk, and in an object store."""

LARGE = DOCUMENTS_FILES
"""The pipeline whose savepoints take a gigabyte each, so none of them may stay."""

FAULTY = (
    object_server.Fault.SERVER_ERROR,
    object_server.Fault.SLOW_DOWN,
    object_server.Fault.LOST_ANSWER,
    object_server.Fault.CUT_ANSWER,
    object_server.Fault.ALTERED,
)
PARALLELISMS = (1, 2, 3)
CHANGES = tuple(
    {
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.unaligned.enabled": unaligned,
    }
    for interval in ("500 ms", "1 s", "2 s")
    for unaligned in ("true", "false")
)
LOST_SHARE = 0.2  # of all packets
FLUSH_S = (0.02, 1.0)
"""How long each flush to a slow disk waits. A checkpoint has about ten flushes and gives up after
10 s."""

STEPS_S = (-600, -60, 60, 3600)


@dataclass(frozen=True, slots=True)
class Doing:
    """The context of a fault: its pipeline, its length, and the random numbers of its seed."""

    staged: Staged
    length_s: float
    rng: Random

    def for_its_length(self, staging: Callable[[Staged], Iterator[float]]) -> None:
        with contextmanager(staging)(self.staged):
            time.sleep(self.length_s)


def slot_killed(doing: Doing) -> None:
    _slot(doing).kill()


def slot_stopped(doing: Doing) -> None:
    """Stops a slot; if `heartbeat.timeout` passes, the run continues, and it wakes as a zombie."""
    slot = _slot(doing)
    slot.suspend()
    time.sleep(doing.length_s)
    with suppress(psutil.NoSuchProcess):
        slot.resume()


def _slot(doing: Doing) -> psutil.Process:
    return doing.staged.slot(doing.rng.randrange(doing.staged.run.parallelism))


def driver_killed(doing: Doing) -> None:
    doing.staged.wait(lambda run: run.driver_pid is not None)
    with suppress(psutil.NoSuchProcess):
        doing.staged.kill_driver()


def worker_killed(doing: Doing) -> None:
    """Kills only the worker and its pool; the drivers are its children too, and survive."""
    supervisor = doing.staged.site.supervisor
    worker = psutil.Process(supervisor.pid_of("worker"))
    for each in (worker, *worker.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            if "celery" in each.cmdline():
                each.kill()
    psutil.wait_procs([worker], timeout=ENDED_WITHIN_S)
    supervisor.revive()


def redis_away(doing: Doing) -> None:
    doing.for_its_length(incidents.stopped_broker)


def postgres_away(doing: Doing) -> None:
    doing.for_its_length(incidents.stopped_database)


def kafka_away(doing: Doing) -> None:
    server = doing.staged.site.servers.kafka
    if server is not None:
        server.server.kill()
        time.sleep(doing.length_s)
        server.server.start()


def redis_hung(doing: Doing) -> None:
    """Makes Redis hang: like the other hung servers, it accepts connections but never answers."""
    if (server := doing.staged.site.servers.redis) is not None:
        with server.server.stopped():
            time.sleep(doing.length_s)


def postgres_hung(doing: Doing) -> None:
    if (server := doing.staged.site.servers.postgres) is not None:
        with server.stopped():
            time.sleep(doing.length_s)


def kafka_hung(doing: Doing) -> None:
    if (server := doing.staged.site.servers.kafka) is not None:
        with server.server.stopped():
            time.sleep(doing.length_s)


def objects_away(doing: Doing) -> None:
    """Breaks connections to the object store."""
    _objects_do(doing, lambda _: object_server.Fault.CUT_UPLOAD)


def objects_faulty(doing: Doing) -> None:
    """Makes one request in three fail, each time in another way."""
    ways = [way for fault in FAULTY for way in (fault, None, None)]
    _objects_do(doing, lambda request: ways[request.number % len(ways)])


def objects_slow(doing: Doing) -> None:
    _objects_do(doing, lambda _: object_server.Fault.SLOW)


def _objects_do(doing: Doing, plan: object_server.Plan) -> None:
    if (server := doing.staged.site.servers.objects) is not None:
        server.plan(plan)
        time.sleep(doing.length_s)
        server.plan(object_server.never)


def servers_cut_off(doing: Doing) -> None:
    """Cuts off Redis, PostgreSQL and Kafka: no packet gets to or from them."""
    with network.lossy(_ports_of(doing.staged.site.servers)):
        time.sleep(doing.length_s)


def slot_cut_off(doing: Doing) -> None:
    """Cuts a slot off from its driver, the other slots and the servers that it is connected to."""
    with network.lossy(network.ports_in_use(_slot(doing))):
        time.sleep(doing.length_s)


def bad_lines(doing: Doing) -> None:
    """Drops some packets to and from the servers, so that data arrives late."""
    with network.lossy(_ports_of(doing.staged.site.servers), LOST_SHARE):
        time.sleep(doing.length_s)


def _ports_of(servers: Servers) -> set[int]:
    """Returns the ports of the servers at the pipelines' ends."""
    addresses = [server.url for server in (servers.redis, servers.postgres) if server is not None]
    if servers.kafka is not None:
        addresses.append(f"kafka://{servers.kafka.bootstrap_servers}")
    return {port for address in addresses if (port := urlsplit(address).port) is not None}


def disk_full(doing: Doing) -> None:
    doing.for_its_length(partial(incidents.filled_disk, DISK))


def disk_read_only(doing: Doing) -> None:
    doing.for_its_length(incidents.read_only_disk)


def disk_slow(doing: Doing) -> None:
    """Makes each flush of the pipeline wait, as if other processes kept the disk busy."""
    run = doing.staged.run
    pids = {slot["pid"] for slot in run.slots.values()} | {run.driver_pid}
    with slow_flushes([pid for pid in pids if pid], doing.rng.uniform(*FLUSH_S)):
        time.sleep(doing.length_s)


@contextmanager
def slow_flushes(pids: Sequence[int], flush_s: float) -> Iterator[None]:
    """Makes each flush of these processes to a disk take `flush_s` longer. They may end meanwhile.

    Raises Rejected if there is no strace, or it could not attach to any of them.
    """
    flushes = "fsync,fdatasync"
    words = ["strace", "--quiet=all", "--follow-forks", "--output=/dev/null"]
    words += [f"--trace={flushes}", f"--inject={flushes}:delay_enter={round(flush_s * 1_000_000)}"]
    try:
        tracer = subprocess.Popen([*words, *(f"--attach={pid}" for pid in pids)])
    except OSError as error:
        raise Rejected(f"slow flushes need strace; install it: {error}") from error
    try:
        yield
        if tracer.poll():
            raise Rejected(f"no flush was slow: strace ended with status {tracer.returncode}")
    finally:
        tracer.terminate()  # it lets go of the processes
        tracer.wait()


def clock_step(doing: Doing) -> None:
    """Steps the clock of the pipeline's driver and slots, not that of the control plane."""
    lever = doing.staged.place / CLOCK
    _put(lever, doing.rng.choice(STEPS_S))
    time.sleep(doing.length_s)
    _put(lever, 0)


def _put(lever: Path, ahead_s: int) -> None:
    """Replaces the lever atomically, because the processes read it all the time."""
    new = lever.with_suffix(".new")
    new.write_text(str(ahead_s))
    os.replace(new, lever)


def savepoint(doing: Doing) -> None:
    path = _path_of(_asked(doing.staged, TakeSavepoint()))
    if doing.staged.name == LARGE:
        doing.staged.wait_runs(1)  # the run needs it until another checkpoint is complete
        _disposed(path)


def stop_and_restore(doing: Doing) -> None:
    _restored(doing)


def rescale(doing: Doing) -> None:
    now = doing.staged.run.parallelism
    _restored(doing, parallelism=doing.rng.choice([p for p in PARALLELISMS if p != now]))


def settings(doing: Doing) -> None:
    now = doing.staged.run.settings
    others = [change for change in CHANGES if not change.items() <= now.items()]
    _restored(doing, settings=doing.rng.choice(others))


def code(doing: Doing) -> None:
    """Continues from a savepoint with the other version of the pipeline's code."""
    parameters = doing.staged.run.parameters
    now, kind = Code(int(parameters[VERSION])), parameters["kind"]
    renamed = now.renamed_to(now.other, kind)
    _restored(doing, parameters={VERSION: str(now.other.version)}, renamed=renamed)


DO: Mapping[Fault, Callable[[Doing], None]] = {
    Fault.SLOT_KILLED: slot_killed,
    Fault.DRIVER_KILLED: driver_killed,
    Fault.WORKER_KILLED: worker_killed,
    Fault.SLOT_STOPPED: slot_stopped,
    Fault.REDIS_AWAY: redis_away,
    Fault.POSTGRES_AWAY: postgres_away,
    Fault.KAFKA_AWAY: kafka_away,
    Fault.REDIS_HUNG: redis_hung,
    Fault.POSTGRES_HUNG: postgres_hung,
    Fault.KAFKA_HUNG: kafka_hung,
    Fault.OBJECTS_AWAY: objects_away,
    Fault.OBJECTS_FAULTY: objects_faulty,
    Fault.OBJECTS_SLOW: objects_slow,
    Fault.SERVERS_CUT_OFF: servers_cut_off,
    Fault.SLOT_CUT_OFF: slot_cut_off,
    Fault.BAD_LINES: bad_lines,
    Fault.DISK_FULL: disk_full,
    Fault.DISK_READ_ONLY: disk_read_only,
    Fault.DISK_SLOW: disk_slow,
    Fault.CLOCK_STEP: clock_step,
    Fault.SAVEPOINT: savepoint,
    Fault.STOP_AND_RESTORE: stop_and_restore,
    Fault.RESCALE: rescale,
    Fault.SETTINGS: settings,
    Fault.CODE: code,
}


OF_SERVERS: Mapping[str, tuple[Fault, ...]] = {
    "redis": (Fault.REDIS_AWAY, Fault.REDIS_HUNG),
    "postgres": (Fault.POSTGRES_AWAY, Fault.POSTGRES_HUNG),
    "kafka": (Fault.KAFKA_AWAY, Fault.KAFKA_HUNG),
    "objects": (Fault.OBJECTS_AWAY, Fault.OBJECTS_FAULTY, Fault.OBJECTS_SLOW),
}
"""Maps the name of a server in `Servers` to its faults."""


def do(planned: Planned, staged: Staged, seed: int) -> None:
    """Causes the fault. Raises Rejected, with the reason, if that is not possible."""
    rng = Random(f"{seed} {planned.at_s} {planned.fault}")
    DO[planned.fault](Doing(staged, planned.length_s, rng))


def targets(
    pipelines: Sequence[str], servers: Servers, left_out: dict[str, str]
) -> dict[Fault, Sequence[str]]:
    """Returns the faults that are possible here and their pipelines.

    Adds the other faults to `left_out`, with the reason.
    """
    shared = {Fault.WORKER_KILLED: ""}
    shared |= dict.fromkeys((Fault.SERVERS_CUT_OFF, Fault.BAD_LINES), network.why_not())
    for server, of_server in OF_SERVERS.items():
        why = servers.missing.get(server, "no chosen pipeline uses it")
        shared |= dict.fromkeys(of_server, "" if getattr(servers, server) else why)
    left_out |= {str(fault): why for fault, why in shared.items() if why}
    found: dict[Fault, Sequence[str]] = {
        fault: pipelines[:1] for fault, why in shared.items() if not why
    }
    of_disk = (Fault.DISK_FULL, Fault.DISK_READ_ONLY)
    for fault in set(Fault) - shared.keys() - set(of_disk):
        found[fault] = pipelines
    if why := shared[Fault.BAD_LINES]:
        left_out[Fault.SLOT_CUT_OFF] = why
        del found[Fault.SLOT_CUT_OFF]
    if why := _why_no_slow_disk():
        left_out[Fault.DISK_SLOW] = why
        del found[Fault.DISK_SLOW]
    why = _why_no_disk(pipelines)
    for fault in of_disk:
        if why:
            left_out[str(fault)] = why
        else:
            found[fault] = (ON_DISK,)
    return found


def checkpoints_of(
    pipeline: str, place: Path, servers: Servers, left_out: Mapping[str, str]
) -> dict[str, str]:
    """Returns the setting for the place of the pipeline's checkpoints, if it is a special one."""
    setting = "execution.checkpointing.dir"
    if pipeline == ON_DISK and Fault.DISK_FULL not in left_out:
        return {setting: f"{place}/{DISK}"}
    if pipeline == IN_OBJECTS and servers.objects is not None:
        return {setting: servers.objects.new_root()}
    return {}


def _why_no_disk(pipelines: Sequence[str]) -> str:
    if ON_DISK not in pipelines:
        return f"the pipeline {ON_DISK} is not among the chosen ones"
    can = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "a small disk needs root" if can.returncode else ""


def _why_no_slow_disk() -> str:
    command = ["strace", "--output=/dev/null", "--inject=fsync:delay_enter=1", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"slow flushes need strace; install it: {error}"
    return f"slow flushes need strace: {done.stderr.strip()}" if done.returncode else ""


def go_on(staged: Staged) -> str:
    """Restores a run that ended unasked. Returns how it ended, or nothing if it still runs."""
    run = staged.run
    if not run.is_terminal:
        return ""
    said = f"{staged.name} ended as {run.status}: {run.reason}"
    newest = next((point for point in recovery_points(staged.name) if point.is_present), None)
    if newest is None:
        raise Rejected(f"{said} There is no point to go on from.")
    _start(staged, newest.path, ClaimMode.NO_CLAIM)
    return said


def drained(staged: Staged) -> None:
    """Drains the run: event time ends, so that every window fires, and then the run ends."""
    stop(staged, StopWithSavepoint(drain=True))


def stop(staged: Staged, command: StopWithSavepoint) -> str:
    """Stops the run with a savepoint, and returns the savepoint's path."""
    path = _path_of(_asked(staged, command))
    staged.wait(lambda run: run.is_terminal)
    return path


def _restored(doing: Doing, **others: Any) -> None:
    """Stops the pipeline and restores it; `others` are the fields of `Restore` that change."""
    staged = doing.staged
    is_large, claimed = staged.name == LARGE, staged.run.restored_from
    path = stop(staged, StopWithSavepoint())
    drawn = doing.rng.choice((ClaimMode.NO_CLAIM, ClaimMode.CLAIM))
    _start(staged, path, ClaimMode.CLAIM if is_large else drawn, **others)
    # A claimed point stays if its run ends before enough checkpoints have replaced it.
    if is_large and claimed is not None and Path(claimed).exists():
        _disposed(claimed)


def _start(staged: Staged, path: str, claim_mode: ClaimMode, **others: Any) -> None:
    how = Restore(pipeline=staged.name, path=path, **others)
    restore(how, requester=WHO, reason="the soak", claim_mode=claim_mode)
    staged.wait(lambda run: run.status == "RUNNING" or run.is_terminal)


def _asked(staged: Staged, command: RunCommand) -> Request:
    """Raises Rejected if the request did not succeed: it may be refused amid a recovery."""
    staged.wait(lambda run: run.status == "RUNNING" or run.is_terminal, STARTED_WITHIN_S)
    return _ended(services.ask(staged.name, command, who=WHO, why="the soak"))


def _ended(request_id: RequestId) -> Request:
    def request() -> Request:
        return Request.objects.select_related("pipeline").get(request_id=request_id)

    asked = request()
    what = f"The request to {asked.command.action} of {asked.pipeline.name}"
    wait_until(
        lambda: request().phase not in OPEN_PHASES,
        within_s=ENDED_WITHIN_S,
        otherwise=lambda: f"{what} did not end.",
    )
    ended = request()
    if ended.phase != RequestPhase.SUCCEEDED:
        raise Rejected(f"{what} failed: {ended.message}")
    return ended


def _disposed(path: str) -> None:
    _ended(dispose(pipeline=LARGE, path=path, requester=WHO, reason="the soak"))


def _path_of(savepoint: Request) -> str:
    if savepoint.path is None:
        raise Rejected(f"The savepoint of {savepoint.pipeline.name} has no path.")
    return savepoint.path
