"""GET /healthz and /readyz, for a supervisor and a load balancer. They need no sign-in.

`/healthz` answers 200 as long as this web server handles requests. `/readyz` answers 200 if it can
serve people: the database and Redis answer, the projector is alive, and it has read every event
that is older than `PROJECTOR_LAG_MAX_S`. Otherwise it answers 503. Neither says more than one word;
`ftdash doctor` tells you the cause.
"""

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ftdash.deployment import doctor
from ftdash.runs.queries.freshness import observe

WORDS = "text/plain; charset=utf-8"


@require_safe
@never_cache
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("healthy\n", WORDS)


@require_safe
@never_cache
@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    if is_ready():
        return HttpResponse("ready\n", WORDS)
    return HttpResponse("not ready\n", WORDS, 503)


def is_ready() -> bool:
    for look in (doctor.database, doctor.queue, doctor.migrations):
        if look().verdict is doctor.PartState.BROKEN:
            return False
    seen = observe()
    found = doctor.projector(seen.projector), doctor.journals(seen)
    return all(each.verdict is not doctor.PartState.BROKEN for each in found)


app_name = "health"

urlpatterns = [path("healthz", healthz, name="healthz"), path("readyz", readyz, name="readyz")]
