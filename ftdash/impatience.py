"""Limits how long a web request waits for silent servers of sources and sinks.

The preflight of a restore, for example, asks such servers; the answer names a silent one instead of
waiting for it. Commands and workers wait as long as a run does.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from pipelines.domain.patience import waiting_at_most

Answer = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def impatient(
    get_response: Answer,
) -> Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]:
    async def answer_async(request: HttpRequest) -> HttpResponseBase:
        with waiting_at_most(settings.SERVERS_ANSWER_WITHIN_S):
            response: HttpResponseBase = await get_response(request)
            return response

    def answer(request: HttpRequest) -> HttpResponseBase:
        with waiting_at_most(settings.SERVERS_ANSWER_WITHIN_S):
            response: HttpResponseBase = get_response(request)
            return response

    return answer_async if iscoroutinefunction(get_response) else answer
