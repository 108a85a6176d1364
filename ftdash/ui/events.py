"""Keeps open tabs current: tells them which pipelines changed, and renders what they then ask for.

A message of the event stream names resources and versions and nothing else. Tabs always read the
data itself again from the database, so a lost message costs nothing. One poller per event loop
reads the versions for all tabs, and only while there are listeners. A stream ends by itself after
`STREAM_AGE_MAX_S`. The browser then opens the next one, which also ends the stream of a person who
has signed out.

After each change every open tab asks for the same regions. The rendering for one of them also
serves the others, until the versions of the event stream advance, and for at most a second. A
rendering depends only on the address and on whether the person may act.
"""

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import wraps
from threading import Condition
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from cachetools import TTLCache, cached
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

POLL_S = 0.5
BEAT_S = 2.0
"""The longest time without a write, so that the server notices and drops dead connections."""

STREAM_AGE_MAX_S = 300.0

REFRESHES_PER_S = 100
"""The limit over all tabs. With many listeners, each hears of changes less often, so that viewers
never take the machine from the pipelines."""

Versions = Mapping[str, str]
ChangeCounts = tuple[int, ...]
"""Advances with every change that is sent to listeners."""


class VersionBoard:
    """The newest version of each resource, read by one poller for all listeners of a loop."""

    def __init__(self, read_versions: Callable[[], Versions], poll_s: float = POLL_S) -> None:
        self._read = read_versions
        self._poll_s = poll_s
        self._listeners = 0
        self._poller: asyncio.Task[None] | None = None
        self.versions: Versions = {}
        self.change_count = 0
        self.news = asyncio.Event()  # set by the next change, then replaced

    @property
    def has_listeners(self) -> bool:
        return self._listeners > 0

    @property
    def pause_s(self) -> float:
        """The pause between two changes for one listener; at most as long as a beat."""
        return min(BEAT_S, self._listeners / REFRESHES_PER_S)

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """The poller runs from the first listener to the last."""
        self._listeners += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._listeners -= 1
            if self._listeners == 0:
                self._poller.cancel()

    def check_polling(self) -> None:
        """Raises the error that ended the poller, so that a stream never outlives its source."""
        if self._poller is not None and self._poller.done():
            self._poller.result()

    async def _poll(self) -> None:
        while True:
            versions = await self._read_once()
            if versions != self.versions:
                self.versions = versions
                self.change_count += 1
                self.news.set()
                self.news = asyncio.Event()
            # If it polled more often than listeners hear of changes, few of them would get each
            # page that it makes.
            await asyncio.sleep(max(self._poll_s, self.pause_s / 2))

    async def _read_once(self) -> Versions:
        # A separate thread: the poller outlives the request that started it, and so the thread that
        # Django reserves for that request.
        return await sync_to_async(self._read_and_close, thread_sensitive=False)()

    def _read_and_close(self) -> Versions:
        try:
            return dict(self._read())
        finally:
            close_old_connections()


async def messages(
    board: VersionBoard, *, beat_s: float = BEAT_S, age_max_s: float = STREAM_AGE_MAX_S
) -> AsyncIterator[bytes]:
    """Yields all versions at first, then each change, and a beat if nothing changes."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + age_max_s
    seen: dict[str, str] = {}
    async with board.joined():
        while loop.time() < ends_at:
            news = board.news  # taken before the versions, so that no change falls in between
            changed = {n: v for n, v in board.versions.items() if seen.get(n) != v}
            seen.update(changed)
            yield message("changed", changed) if changed else message("beat", {})
            if changed:
                # Tabs do not ask all at once, so that the rendering for one serves those after it.
                await asyncio.sleep(board.pause_s * random.uniform(0.5, 1.5))
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), beat_s)
            board.check_polling()
    yield message("renew", {})


def message(name: str, body: Versions) -> bytes:
    return f"event: {name}\ndata: {json.dumps(body)}\n\n".encode()


_boards: WeakKeyDictionary[asyncio.AbstractEventLoop, VersionBoard] = WeakKeyDictionary()


def change_counts() -> ChangeCounts | None:
    """Returns the state of this process, or None without listeners: changes are then unknown."""
    boards = list(_boards.values())
    if not any(board.has_listeners for board in boards):
        return None
    return tuple(board.change_count for board in boards)


def board_of_this_loop(read_versions: Callable[[], Versions]) -> VersionBoard:
    loop = asyncio.get_running_loop()
    if loop not in _boards:
        _boards[loop] = VersionBoard(read_versions)
    return _boards[loop]


View = Callable[..., HttpResponse]
RENDERINGS_MAX = 128
COMPRESSION = 6
FRESH_S = 1.0


def shared(regions: View) -> View:
    """Wraps a view that answers 200 with regions, or raises."""

    @wraps(regions)
    def answer(request: HttpRequest, **of_address: Any) -> HttpResponse:
        counts = change_counts()
        if counts is None:
            return regions(request, **of_address)
        may_act = request.user.has_perm("jobs.operate")
        plain, compressed = _content(counts, may_act, regions, request, of_address)
        response = HttpResponse(plain)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response = HttpResponse(compressed, headers={"Content-Encoding": "gzip"})
        patch_vary_headers(response, ("Accept-Encoding",))
        return response

    return answer


def _key(counts: ChangeCounts, may_act: bool, regions: View, request: HttpRequest, _: Any) -> Any:
    return counts, may_act, regions, request.get_full_path()


# The condition: while one thread renders, others that need the same wait for it.
@cached(TTLCache(maxsize=RENDERINGS_MAX, ttl=FRESH_S), key=_key, condition=Condition())
def _content(
    counts: ChangeCounts,
    may_act: bool,
    regions: View,
    request: HttpRequest,
    of_address: dict[str, Any],
) -> tuple[bytes, bytes]:
    """Returns the regions plain and compressed, so that many viewers cost one compression.

    Regions contain no secret of a viewer that the length of the answer could give away.
    """
    plain = regions(request, **of_address).content
    return plain, gzip.compress(plain, COMPRESSION)
