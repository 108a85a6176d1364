"""Measures an installation's use of resources, by kind of process, and the time of its recoveries.

Django has to be loaded in the environment of a separate installation.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import psutil
from django.apps import apps
from django.conf import settings
from django.db import connections
from django.utils import timezone

from bench.soak.slopes import Sample
from ftdash.checkpoints.models import COMPLETE, Checkpoint
from ftdash.embedded.supervisor import LEDGER_NAME, Supervisor, living
from ftdash.jobs.models import Recovery, Run
from ftdash.runs.queries.freshness import to_running_ms

PARTS = ("web", "worker", "beat", "projector", "redis")
COMPLETED = "checkpoints"
"""The figure that counts completed checkpoints."""

MB = 1_000_000
YOUNG_S = 5.0
"""Younger processes are not measured: their memory grows only because they start."""


class Meter:
    """Call `sample` from one thread."""

    def __init__(self, home: Path, supervisor: Supervisor) -> None:
        self._home, self._supervisor = home, supervisor
        self._began_s = time.monotonic()
        self._since = timezone.now()

    def sample(self) -> Sample:
        at_s = time.monotonic() - self._began_s
        figures = {**self._of_processes(), **_of_files(), **self._of_rows()}
        return Sample(at_s, figures)

    def close(self) -> None:
        """Closes the database connection of this thread."""
        connections.close_all()

    def _of_processes(self) -> dict[str, float]:
        """Returns the mean of each kind, so that one more process does not count as growth."""
        by_figure = defaultdict[str, list[float]](list)
        kinds = self._kinds()
        now_s = time.time()
        for process in living(self._home / LEDGER_NAME):
            with suppress(psutil.NoSuchProcess):
                if now_s - process.create_time() < YOUNG_S:
                    continue
                kind = kinds.get(process.pid) or kinds.get(process.ppid(), "")
                if kind in (*PARTS, "driver", "slot"):
                    # All three first: a process may end in between, and then counts as none.
                    used = {
                        "memory_mb": process.memory_info().rss / MB,
                        "descriptors": process.num_fds(),
                        "threads": process.num_threads(),
                    }
                    for what, value in used.items():
                        by_figure[f"{kind}.{what}"].append(value)
        return {figure: round(fmean(values), 2) for figure, values in by_figure.items()}

    def _kinds(self) -> dict[int, str]:
        """Returns {process id: its kind}; the pool of a worker consists of its children."""
        kinds = {self._supervisor.pid_of(part): part for part in PARTS}
        for run in Run.objects.filter(ended_at=None):
            kinds |= {each["pid"]: "slot" for each in run.slots.values()}
            if run.driver_pid is not None:
                kinds |= {run.driver_pid: "driver"}
                kinds |= {pid: "helper" for pid in _children(run.driver_pid) if pid not in kinds}
        return kinds

    def _of_rows(self) -> dict[str, float]:
        complete = Checkpoint.objects.filter(status__in=[each.value for each in COMPLETE])
        new = complete.filter(completed_at__gte=self._since, end_to_end_ms__isnull=False)
        self._since = timezone.now()
        took_ms = [each or 0.0 for each in new.values_list("end_to_end_ms", flat=True)]
        rows = sum(
            model._default_manager.count() for model in apps.get_models() if model._meta.managed
        )
        found = {"control_plane.rows": float(rows), COMPLETED: float(complete.count())}
        return {**found, "checkpoint_ms": fmean(took_ms)} if took_ms else found


def _children(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [each.pid for each in psutil.Process(pid).children()]
    return []


def _of_files() -> dict[str, float]:
    files = size = journal = 0
    for path, bytes_ in _sizes(Path(settings.JOBS_ROOT)):
        if os.path.basename(path).startswith("journal"):
            journal += bytes_
        else:
            files, size = files + 1, size + bytes_
    return {"jobs.files": files, "jobs.bytes": size, "journal.bytes": journal}


def _sizes(root: Path) -> Iterator[tuple[str, int]]:
    """Leaves out a file that is deleted meanwhile."""
    for directory, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                path = os.path.join(directory, name)
                yield path, os.lstat(path).st_size


def recoveries_ms() -> list[float]:
    """Returns all runs' recovery times, from the first sign of a failure to all subtasks running.

    They come from the phases, which the monotonic clock times: the soak steps the wall clock.
    """
    taken = (to_running_ms(each.running_at, each.phases) for each in Recovery.objects.all())
    return [round(took_ms, 1) for took_ms in taken if took_ms is not None]
