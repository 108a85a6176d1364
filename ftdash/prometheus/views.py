"""GET /metrics, in the format that the scraper asks for: Prometheus' own, or OpenMetrics.

It needs a token of any scope, or a session. Without either, the answer is one line of refusal, not
a redirect to the sign-in page. The Prometheus library gets one family after the other.
"""

from collections.abc import Iterable, Iterator

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ftdash.accounts.authentication import Refused, caller_of
from ftdash.prometheus.families import FAMILIES, Family, Reading
from ftdash.prometheus.observed import Observed, observed
from ftdash.prometheus.readings import flink_readings, installation_readings, pipeline_readings


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


@require_GET
@never_cache
@login_not_required
def metrics(request: HttpRequest) -> HttpResponse:
    try:
        caller_of(request)
    except Refused as refusal:
        return _refused(refusal)
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(RowsCollector(observed())), content_type)


def _refused(refusal: Refused) -> HttpResponse:
    text = f"{refusal}\n"
    answer = HttpResponse(text, "text/plain; charset=utf-8", refusal.status)
    if refusal.status == 401:
        answer["WWW-Authenticate"] = "Bearer"
    return answer


app_name = "prometheus"

urlpatterns = [path("metrics", metrics, name="metrics")]
