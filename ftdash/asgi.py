"""The ASGI entry point, `uvicorn ftdash.asgi:application`: a few permanent threads answer requests.

Each has its own database connection. Django's own handler gives every request a new thread, and
with it a new connection, and switches between thread and event loop for the middleware. That costs
some 9 ms of processor time for a cached answer; this handler takes 3. All middleware and the view
run here in one piece. The event loop reads the whole request before its thread begins, and it sends
the answer, so a slow client does not delay the others.
"""

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import django
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponseBase
from django.urls import get_resolver
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ftdash.jobs.fresh_code import stay

THREADS = 16
"""Until this many pages wait for silent servers, each of them has a thread to itself."""

_place: ContextVar[ExitStack] = ContextVar("place")  # of the running request in its thread


class PageHandler(ASGIHandler):
    """An ASGI application. A request gets the thread with the fewest other requests."""

    def __init__(self) -> None:
        super().__init__()
        # A context that is never left keeps its thread, which starts at first use.
        self._unanswered = dict.fromkeys((ThreadSensitiveContext() for _ in range(THREADS)), 0)

    def load_middleware(self, is_async: bool = False) -> None:
        """Loads the middleware for use in one thread, whatever the server's interface is."""
        super().load_middleware(is_async=False)

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        with ExitStack() as place:
            _place.set(place)

            async def send_answer(part: Any) -> None:
                place.close()  # the event loop does the rest: a stream may take minutes
                await send(part)

            await super().handle(scope, receive, send_answer)

    async def read_body(self, receive: Any) -> Any:
        body = await super().read_body(receive)
        _place.get().enter_context(self._thread())
        return body

    @contextmanager
    def _thread(self) -> Iterator[None]:
        """Assigns a thread to the current task until that ends; leaving the context frees it."""
        context = min(self._unanswered, key=self._unanswered.__getitem__)
        SyncToAsync.thread_sensitive_context.set(context)
        self._unanswered[context] += 1
        try:
            yield
        finally:
            self._unanswered[context] -= 1

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response)(request)


class TrustsProxies:
    """An ASGI application around another: believes headers about the client from trusted proxies.

    `trusted`: addresses and networks, separated by commas. From others it removes the headers that
    name a person, so that no client can name itself. It looks at the address of the peer, so the
    server in front must not replace that address: run `uvicorn --no-proxy-headers`.
    """

    def __init__(self, application: Any, trusted: str, naming: Iterable[str]) -> None:
        self._forwarding = ProxyHeadersMiddleware(application, trusted_hosts=trusted)
        self._naming = {each.lower().encode() for each in naming if each}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        peer = scope.get("client")
        is_trusted = peer is not None and peer[0] in self._forwarding.trusted_hosts
        if self._naming and not is_trusted and "headers" in scope:
            kept = [each for each in scope["headers"] if not self._names_a_person(each[0])]
            scope = {**scope, "headers": kept}
        await self._forwarding(scope, receive, send)

    def _names_a_person(self, header: bytes) -> bool:
        """Django treats `_` in a header's name as `-`."""
        return header.lower().replace(b"_", b"-") in self._naming


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")

YOUNG_OBJECTS_MAX = 10_000
"""With Python's default of 700, making a page of 300 kB runs the garbage collector ten times."""


def load_pages() -> None:
    """Loads what pages need before the first request, and exempts it from garbage collection.

    Imports no flow: a page asks a separate process, which reads the flow's code as it is at that
    time. All loaded objects stay until the process ends; a full collection over them would delay a
    page by 200 ms. The objects of one page stay below the threshold, so no collection runs.
    """
    import_module("pipelines.points.code_process")  # with Arrow
    stay()
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


django.setup(set_prefix=False)
application = TrustsProxies(
    PageHandler(),
    settings.TRUSTED_PROXIES,
    (settings.REMOTE_USER_HEADER, settings.REMOTE_GROUPS_HEADER),
)
load_pages()
