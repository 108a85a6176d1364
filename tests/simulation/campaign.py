"""Many seeds, side by side in processes: each one is simulated, then judged by every checker."""

import gc
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.simulation.checkers import CHECKERS, Checker
from tests.simulation.circumstances import USUAL, Chances, Circumstances
from tests.simulation.reached import reached
from tests.simulation.simulated_run import Simulation

if TYPE_CHECKING:
    from tests.simulation.outcome import Outcome

MEMORY = Path("/dev/shm")
"""If it exists, files are kept in memory: the simulated disk needs no real one."""
FAILED_SEEDS = Path(__file__).with_name("failed_seeds.txt")


@dataclass(frozen=True)
class Verdict:
    seed: int
    mode: str
    problems: list[str]
    trace: str = ""
    seen: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    cpu_s: float = field(default=0.0, compare=False)


def campaign(seeds: Iterable[int], processes: int, at_once: int = 5) -> Iterator[Verdict]:
    """Judges the seeds, `at_once` per task, and yields verdicts in any order.

    It fixes the order of sets too, or a seed would not replay its run.
    """
    os.environ["PYTHONHASHSEED"] = "0"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads wait by spinning
    with multiprocessing.get_context("spawn").Pool(processes, initializer=_begin) as pool:
        yield from pool.imap_unordered(_judge_and_tidy, seeds, chunksize=at_once)


def failed_seeds(file: Path = FAILED_SEEDS) -> list[int]:
    """Returns the kept seeds that once found a defect."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [int(line) for line in lines if line]


def judge(
    seed: int,
    checkers: tuple[Checker, ...] = CHECKERS,
    chances: Chances = USUAL,
    circumstances: Circumstances | None = None,
) -> Verdict:
    """Simulates and judges a seed, with `circumstances` instead of drawn ones if given."""
    began_s = time.process_time()
    root = Path(tempfile.mkdtemp(prefix="ftdash-simulation-", dir=_memory()))
    simulation = Simulation(seed, root, chances=chances, circumstances=circumstances)
    mode, outcome = simulation.circumstances.mode, simulation.outcome
    try:
        problems = _problems(simulation, checkers)
        seen = outcome.seen + reached(outcome)
        cpu_s = time.process_time() - began_s
        return Verdict(seed, mode, problems, outcome.trace, seen, outcome.turns, cpu_s)
    except Exception as error:  # a seed that breaks the simulator is a bad seed, like any other
        return Verdict(seed, mode, [_where(error)])
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _problems(simulation: Simulation, checkers: tuple[Checker, ...]) -> list[str]:
    outcome: Outcome = simulation.run()
    return [f"{checker.__name__}: {each}" for checker in checkers for each in checker(outcome)]


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"


def _begin() -> None:
    pa.set_cpu_count(1)  # every process works on a seed of its own
    gc.freeze()
    gc.disable()  # a tenth of the time; cycles are collected between two seeds


def _judge_and_tidy(seed: int) -> Verdict:
    verdict = judge(seed)
    gc.collect()
    return verdict


def _memory() -> Path | None:
    return MEMORY if MEMORY.is_dir() else None
