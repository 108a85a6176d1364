"""Hands readings to the Prometheus library, one family after the other, as it requires."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ftdash.prometheus.families import FAMILIES, Family
from ftdash.prometheus.flink_readings import flink_readings
from ftdash.prometheus.observed import Observed
from ftdash.prometheus.own_readings import installation_readings, pipeline_readings
from ftdash.prometheus.reading import Reading


class RowsCollector(Collector):
    """Collects one observation; lives for one answer."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterable[Metric]:
        found: dict[str, list[Reading]] = {}
        for reading in readings(self._observed):
            found.setdefault(reading.family.name, []).append(reading)
        for name, family in FAMILIES.items():
            if name in found:
                yield _written(family, found[name])


def readings(observed: Observed) -> Iterator[Reading]:
    yield from installation_readings(observed)
    for pipeline in observed.pipelines:
        yield from pipeline_readings(pipeline)
        if pipeline.run is not None:
            yield from flink_readings(pipeline.run)


def _written(family: Family, readings: list[Reading]) -> Metric:
    kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for reading in readings:
        metric.add_metric([reading.labels[label] for label in family.labels], reading.value)
    return metric
