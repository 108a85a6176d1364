"""One rendering of a page's regions for all viewers of the page.

After each change every open tab asks for the same regions. The rendering for one of them also
serves the others, until the versions of the event stream advance, and for at most a second. It
depends only on the address and on whether the person may act.
"""

from collections.abc import Callable
from functools import wraps
from threading import Condition
from typing import Any

from cachetools import TTLCache, cached
from django.http import HttpRequest, HttpResponse

from ftdash.ui import events

View = Callable[..., HttpResponse]
RENDERINGS_MAX = 128
FRESH_S = 1.0


def shared(regions: View) -> View:
    """Wraps a view that answers 200 with regions, or raises."""

    @wraps(regions)
    def answer(request: HttpRequest, **of_address: Any) -> HttpResponse:
        told = events.told_to_listeners()
        if told is None:
            return regions(request, **of_address)
        may_act = request.user.has_perm("jobs.operate")
        return HttpResponse(_content(told, may_act, regions, request, of_address))

    return answer


def _key(told: events.Told, may_act: bool, regions: View, request: HttpRequest, _: Any) -> Any:
    return told, may_act, regions, request.get_full_path()


# The condition: while one thread renders, others that need the same wait for it.
@cached(TTLCache(maxsize=RENDERINGS_MAX, ttl=FRESH_S), key=_key, condition=Condition())
def _content(
    told: events.Told,
    may_act: bool,
    regions: View,
    request: HttpRequest,
    of_address: dict[str, Any],
) -> bytes:
    return regions(request, **of_address).content
