"""Judges if the processes' use of resources grows: slopes per hour, each with its bound. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP_SHARE = 1 / 3
"""The share of the run in which imports, caches, pools and the first restores take memory."""

JUDGED_FROM_S = 600.0
"""A shorter run says nothing about an hour: a megabyte in a minute would become sixty."""

SAMPLES_MIN = 10
LINE_MIN = 3
SURE = 3.0  # standard errors: some thirty figures are judged


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure may grow by `per_hour`, and by `per_checkpoint` with each completed checkpoint."""

    figure: str  # a regular expression for the whole name
    per_hour: float
    reason: str
    per_checkpoint: float = 0.0


BOUNDS = (
    Bound(
        r"(web|worker|beat|projector|redis)\.memory_mb",
        20.0,
        "These live as long as the installation: more would be 0.5 GB a day.",
    ),
    Bound(
        r"(driver|slot)\.memory_mb",
        60.0,
        "Faults replace them, and RocksDB's cache, which the soak keeps small, is full after a few"
        " minutes: memory that grows for longer is leaked.",
    ),
    Bound(
        r"slot\.descriptors",
        300.0,
        "RocksDB has up to 80 small files open for each state until it merges them: a swing, which"
        " a slope of minutes shows. A file kept for every checkpoint would be thousands.",
    ),
    Bound(
        r".*\.descriptors",
        10.0,
        "A leaked descriptor for each of some 300 faults in an hour would be 300.",
    ),
    Bound(r".*\.threads", 5.0, "A leaked thread for each fault would be 300."),
    Bound(
        r"jobs\.files",
        4000.0,
        "The run directories and savepoints of some 100 restores in an hour stay, 15 files each;"
        " of periodic checkpoints only the retained ones, with up to 80 small files of each state."
        " A file kept for every checkpoint would be 3,600 for each state.",
    ),
    Bound(
        r"jobs\.bytes",
        400e6,
        "The state of the pipelines grows with their keys, and savepoints hold all of it.",
    ),
    Bound(
        r"journal\.bytes",
        5e6,
        "A checkpoint takes some 6 kB at parallelism 2, and more at 3; recoveries take as much."
        " The history's limits cut journals off later than a soak ends.",
        per_checkpoint=10e3,
    ),
    Bound(
        r"control_plane\.rows",
        20_000.0,
        "A checkpoint has its row, those of its subtasks and those of the ledger, some 7; metrics"
        " have samples. The history's limits cut them off later than a soak ends.",
        per_checkpoint=12.0,
    ),
    Bound(r"checkpoint_ms", 500.0, "Checkpoints are incremental, so state may not slow them."),
)


@dataclass(frozen=True, slots=True)
class Slope:
    """`bound` is None if the figure has no bound, or if the run was too short to judge."""

    per_hour: float
    error: float  # standard error of it
    bound: float | None
    is_flat: bool


def slopes(samples: Sequence[Sample], *, checkpoints: str, judges: bool) -> dict[str, Slope]:
    """Returns {figure: its slope} for the figures that were measured often enough.

    `checkpoints` is the figure that counts completed checkpoints; it has no slope itself.
    """
    kept = after_warm_up(samples)
    rate = line([(s.at_s, s.figures[checkpoints]) for s in kept if checkpoints in s.figures])
    names = sorted({name for sample in kept for name in sample.figures} - {checkpoints})
    found: dict[str, Slope] = {}
    for name in names:
        points = [(s.at_s, s.figures[name]) for s in kept if name in s.figures]
        if len(points) < (SAMPLES_MIN if judges else LINE_MIN):
            continue
        per_hour, error = line(points)
        bound = bound_of(name, rate[0]) if judges else None
        is_flat = bound is None or per_hour - SURE * error <= bound
        found[name] = Slope(per_hour, error, bound, is_flat)
    return found


def after_warm_up(samples: Sequence[Sample]) -> list[Sample]:
    if not samples:
        return []
    first, last = samples[0].at_s, samples[-1].at_s
    return [each for each in samples if each.at_s >= first + WARM_UP_SHARE * (last - first)]


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits a line to points (s, value); returns its slope per hour and the standard error."""
    if len(points) < LINE_MIN:
        return 0.0, 0.0
    hours = np.array([at_s for at_s, _ in points]) / 3600
    values = np.array([value for _, value in points])
    (slope, intercept), *_ = np.polyfit(hours, values, 1, full=True)
    rest = values - (slope * hours + intercept)
    spread = ((hours - hours.mean()) ** 2).sum()
    error = np.sqrt((rest**2).sum() / (len(points) - 2) / spread) if spread else 0.0
    return float(slope), float(error)


def bound_of(figure: str, checkpoints_per_hour: float) -> float | None:
    for bound in BOUNDS:
        if re.fullmatch(bound.figure, figure):
            return bound.per_hour + bound.per_checkpoint * checkpoints_per_hour
    return None


def percentile(values: Sequence[float], share: float) -> float | None:
    return round(float(np.percentile(values, 100 * share)), 1) if values else None
