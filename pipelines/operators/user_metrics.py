"""Metrics that an author's function keeps: counters, gauges and histograms of one subtask.

The function only adds to Python numbers. The slot's sampler reads them twice a second, on a thread
of its own. They are not part of a snapshot: each attempt begins at zero. `context.count` is the
counter that snapshots contain.

Source: Flink, `MetricGroup`, `Counter`, `Gauge`, `Histogram` and `DescriptiveStatisticsHistogram`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import TypeVar

import numpy as np

from pipelines.domain.errors import Rejected
from pipelines.domain.events import MetricKind, MetricSample, MetricSpread
from pipelines.domain.ids import Uid

METRICS_MAX = 30
"""The most metrics per operator. Each is sent, stored and served for every subtask each second."""
HISTOGRAM_VALUES = 1_000
"""A histogram describes this many of its newest values."""
PROBLEM_CHARS_MAX = 200
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,79}")


@dataclass(slots=True)
class Counter:
    """Read `count`; change it with `inc` and `dec`."""

    count: int = 0

    def inc(self, by: int = 1) -> None:
        self.count += by

    def dec(self, by: int = 1) -> None:
        self.count -= by


@dataclass(frozen=True, slots=True)
class Gauge:
    """`read` runs on another thread than the function and should be quick."""

    read: Callable[[], float]


@dataclass(slots=True)
class Histogram:
    """Describes the distribution of its newest values."""

    count: int = 0
    _newest: list[float] = field(default_factory=list)

    def update(self, value: float) -> None:
        if self.count < HISTOGRAM_VALUES:
            self._newest.append(value)
        else:
            self._newest[self.count % HISTOGRAM_VALUES] = value
        self.count += 1

    def update_all(self, values: Iterable[float]) -> None:
        for value in values:
            self.update(value)

    def newest(self) -> list[float]:
        return self._newest.copy()


Metric = Counter | Gauge | Histogram
_Found = TypeVar("_Found", Counter, Histogram)


class OperatorMetrics:
    """The metrics of one operator in one subtask, by name.

    Asking for a counter or a histogram again returns the same one. Guarantee: no more than
    `METRICS_MAX`, so that names made from data cannot flood the store of metrics.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str) -> Counter:
        """Raises Rejected for a name that cannot be used, like the methods below."""
        return self._existing_or_new(name, Counter)

    def gauge(self, name: str, read: Callable[[], float]) -> Gauge:
        if name in self._metrics:
            raise Rejected(f"There is a metric {name!r} already; give the gauge another name.")
        gauge = Gauge(read)
        self._add(name, gauge)
        return gauge

    def histogram(self, name: str) -> Histogram:
        return self._existing_or_new(name, Histogram)

    def samples(self, operator: Uid) -> list[MetricSample]:
        """Returns the present values. Any thread may call this."""
        metrics = list(self._metrics.items())  # copied in one step
        return [_sample(operator, name, metric) for name, metric in metrics]

    def _existing_or_new(self, name: str, kind: type[_Found]) -> _Found:
        found = self._metrics.get(name)
        if isinstance(found, kind):
            return found
        if found is not None:
            raise Rejected(
                f"The metric {name!r} is a {type(found).__name__.lower()}; give the"
                f" {kind.__name__.lower()} another name."
            )
        new = kind()
        self._add(name, new)
        return new

    def _add(self, name: str, metric: Metric) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Rejected(
                f"A metric cannot be named {name!r}: take up to 80 letters, digits and the"
                " characters _ . : - and begin with a letter."
            )
        if len(self._metrics) >= METRICS_MAX:
            raise Rejected(
                f"An operator may have {METRICS_MAX} metrics, and {name!r} is one more. Do not make"
                " names from data, such as keys; count in state instead."
            )
        self._metrics[name] = metric


def _sample(operator: Uid, name: str, metric: Metric) -> MetricSample:
    match metric:
        case Counter(count):
            value, problem = _number(count)
            return _metric_sample(operator, name, MetricKind.COUNTER, value, problem)
        case Gauge(read):
            value, problem = _read(read)
            return _metric_sample(operator, name, MetricKind.GAUGE, value, problem)
        case Histogram():
            spread, problem = _spread(metric.newest())
            return _metric_sample(
                operator, name, MetricKind.HISTOGRAM, metric.count, problem, spread
            )


def _metric_sample(
    operator: Uid,
    name: str,
    kind: MetricKind,
    value: float | None,
    problem: str,
    spread: MetricSpread | None = None,
) -> MetricSample:
    return MetricSample(
        operator=operator,
        name=name,
        kind=kind,
        value=value,
        spread=spread,
        problem=problem[:PROBLEM_CHARS_MAX],
    )


def _read(read: Callable[[], float]) -> tuple[float | None, str]:
    try:
        value = read()
    except Exception as error:  # an author's code; the page shows the error instead of the value
        return None, f"{type(error).__name__}: {error}"
    return _number(value)


def _number(value: object) -> tuple[float | None, str]:
    """Returns the value as a number that JSON can represent, or None and the reason."""
    if isinstance(value, Integral):
        return int(value), ""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None, f"{type(value).__name__} is no number"
    return (number, "") if np.isfinite(number) else (None, f"{number} is not finite")


def _spread(newest: list[float]) -> tuple[MetricSpread | None, str]:
    """Returns the spread, or None if there is no value; and the problem, if any."""
    try:
        values = np.asarray(newest, dtype=np.float64)
    except (TypeError, ValueError) as error:
        return None, f"a value is no number: {error}"
    finite = values[np.isfinite(values)]
    missing = len(values) - len(finite)
    problem = f"{missing:,} of the newest {len(values):,} values are not finite" if missing else ""
    if not len(finite):
        return None, problem
    p50, p95, p99 = np.quantile(finite, (0.5, 0.95, 0.99)).tolist()
    return MetricSpread(
        least=float(finite.min()),
        most=float(finite.max()),
        mean=float(finite.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
    ), problem
