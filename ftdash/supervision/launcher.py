"""Starts and kills driver processes. Decides nothing: the supervision does.

A driver is a fresh exec in a session of its own, so that it outlives the worker that started it,
and carries its run's id in its environment, as does everything that it starts.
"""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
from django.conf import settings
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from ftdash.jobs.author_environment import environment_of_authors
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Run
from ftdash.supervision import java
from pipelines.bus.lease import Owner
from pipelines.disk.files import create_if_absent
from pipelines.domain.commands import STARTS, UndoStart
from pipelines.domain.faults import PERMISSION as FAULT_PERMISSION
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.run import WAITED, RunDirectory, RunSpec
from pipelines.domain.status import ClaimMode

RUN_ID_VARIABLE = "FTDASH_RUN_ID"
LOG_TAIL_BYTES = 4096
LOG_LINE_LENGTH_MAX = 300
KILL_WAIT_S = 5.0
KILL_POLL_S = 0.02
KILL_ROUNDS_MAX = 5


def start_driver(run: Run, *, waited_ms: float = 0.0) -> psutil.Process:
    """Writes run.json if it is not there, and starts a driver on it.

    `waited_ms` is the time waited on purpose since the driver before it was found dead.
    """
    directory = run_directory(run)
    create_if_absent(directory.spec_file, msgspec.json.encode(_spec(run)))
    with directory.driver_log.open("ab") as log_file, _pipe_with(settings.REDIS_URL) as address:
        driver = subprocess.Popen(
            [*settings.DRIVER_COMMAND, str(directory.path)],
            stdin=address,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            env={**_environment(run), WAITED: str(waited_ms)},
            start_new_session=True,
        )
    # Only a wait removes a dead child from the process table.
    threading.Thread(target=driver.wait, name=f"reap-{driver.pid}", daemon=True).start()
    return psutil.Process(driver.pid)


@contextmanager
def _pipe_with(text: str) -> Iterator[int]:
    """Gives the reading end of a pipe from which `text` can be read once.

    Environments and arguments of a process can be read as long as it lives.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading):
        with os.fdopen(writing, "w") as end:
            end.write(text)  # an address fits into the pipe, so this waits for no reader
        yield reading


def kill_driver(owner: Owner) -> bool:
    """Sends SIGKILL to the very process that holds a lease; returns True if it is gone.

    False means that it is on another machine, belongs to another user, or waits for a disk that is
    dead.
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
    """Sends SIGKILL to every process that carries the run's id; returns their process ids.

    It looks until there is none: a process that was just being started had no environment to be
    known by.
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
    """Returns the driver's last line, shortened; empty if it said nothing."""
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
        renamed_uids={Uid(old): Uid(new) for old, new in run.renamed_uids.items()},
        accepted_gaps=run.accepted_gaps,
        installation=settings.INSTALLATION_ID,
        started_by=_requester(run),
        follows=_run_before(run),
        code=run.shipped_code,
        puts_back=run.puts_back,
    )


def _run_before(run: Run) -> RunId | None:
    """Returns the run before it of the same pipeline."""
    before = Run.objects.filter(pipeline=run.pipeline_id, number__lt=run.number)
    run_id = before.order_by("-number").values_list("run_id", flat=True).first()
    return None if run_id is None else RunId(run_id)


def _requester(run: Run) -> str:
    """Returns who asked for the run; empty if it was made by hand."""
    kinds = (*STARTS, UndoStart.kind)
    requesters = run.requests.filter(kind__in=kinds).values_list("requester", flat=True)
    return requesters.first() or ""


def _environment(run: Run) -> dict[str, str]:
    return {
        **environment_of_authors(),
        **java.environment(),
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
