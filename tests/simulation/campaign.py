"""Many seeds, side by side in processes; each one simulated, then held against every checker."""

import multiprocessing
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tests.simulation.checkers import CHECKERS, Checker
from tests.simulation.simulated_run import USUAL, Faults, Simulation

MEMORY = Path("/dev/shm")
"""Where there is one, files are kept in memory: the simulated disk needs no real one."""


@dataclass(frozen=True)
class Verdict:
    seed: int
    mode: str
    problems: list[str]
    trace: str = ""
    seen: Counter[str] = field(default_factory=Counter)


def campaign(seeds: Iterable[int], processes: int) -> Iterator[Verdict]:
    """In any order."""
    with multiprocessing.get_context("spawn").Pool(processes, initializer=_begin) as pool:
        yield from pool.imap_unordered(judge, seeds, chunksize=5)


def judge(seed: int, checkers: tuple[Checker, ...] = CHECKERS, faults: Faults = USUAL) -> Verdict:
    root = Path(tempfile.mkdtemp(prefix="ftdash-simulation-", dir=_memory()))
    simulation = Simulation(seed, root, faults=faults)
    try:
        outcome = simulation.run()
        problems = [
            f"{checker.__name__}: {problem}" for checker in checkers for problem in checker(outcome)
        ]
        return Verdict(seed, simulation.mode, problems, outcome.trace, outcome.seen)
    except Exception as error:  # a seed that breaks the simulator is a bad seed, like any other
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return Verdict(seed, simulation.mode, [problem])
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _begin() -> None:
    pa.set_cpu_count(1)  # every process has its own seed to work on


def _memory() -> Path | None:
    return MEMORY if MEMORY.is_dir() else None
