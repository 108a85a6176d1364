"""GET /metrics, in the format that the scraper asks for: Prometheus' own, or OpenMetrics.

It needs a token of any scope, or a session. Without either, the answer is one line of refusal, not
a redirect to the sign-in page.
"""

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from prometheus_client.exposition import choose_encoder

from ftdash.accounts.authentication import Refused, caller_of
from ftdash.prometheus.collector import RowsCollector
from ftdash.prometheus.observed import observed


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
