"""The handler of all requests: a few permanent threads, and no request holds up another."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path

from ftdash.asgi import THREADS, PageHandler

PATIENCE_S = 60.0
released = threading.Event()


def which_thread(_: HttpRequest) -> HttpResponse:
    return HttpResponse(str(threading.get_ident()))


def held_up(_: HttpRequest) -> HttpResponse:
    released.wait(PATIENCE_S)
    return HttpResponse("released")


async def stream(_: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(endless())


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"beat"
        await asyncio.Event().wait()


async def both_sides(_: HttpRequest) -> HttpResponse:
    return HttpResponse(str(await sync_to_async(threading.get_ident)()))


def failing(_: HttpRequest) -> HttpResponse:
    raise RuntimeError("on purpose")


urlpatterns = [
    path("thread/", which_thread),
    path("held-up/", held_up),
    path("stream/", stream),
    path("both-sides/", both_sides),
    path("failing/", failing),
]


@pytest.fixture
def handler() -> Iterator[PageHandler]:
    released.clear()
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]):
        yield PageHandler()
    released.set()


def test_one_thread_answers_consecutive_requests(handler: PageHandler) -> None:
    async def asked() -> list[bytes]:
        return [await body(handler, "/thread/") for _ in range(3)]

    assert len(set(asyncio.run(asked()))) == 1


def test_a_waiting_view_does_not_hold_up_others(handler: PageHandler) -> None:
    async def asked() -> list[bytes]:
        waiting = [requested(handler, "/held-up/") for _ in range(THREADS - 1)]
        others = [await body(handler, "/thread/") for _ in range(2 * THREADS)]
        released.set()
        assert [await body_of(each) for each in waiting] == [b"released"] * (THREADS - 1)
        return others

    assert len(set(asyncio.run(asked()))) == 1


def test_open_streams_leave_their_threads_to_other_requests(handler: PageHandler) -> None:
    async def asked() -> bytes:
        streams = [requested(handler, "/stream/") for _ in range(2 * THREADS)]
        for each in streams:
            assert (await each.receive_output(PATIENCE_S))["status"] == 200
            assert (await each.receive_output(PATIENCE_S))["body"] == b"beat"
        return await answered_beside(handler, streams)

    assert asyncio.run(asked())


def test_a_slow_request_takes_no_thread_before_it_is_complete(handler: PageHandler) -> None:
    async def asked() -> bytes:
        slow = [opened(handler, "/thread/") for _ in range(2 * THREADS)]
        for each in slow:
            await each.send_input({"type": "http.request", "body": b"a", "more_body": True})
        return await answered_beside(handler, slow)

    assert asyncio.run(asked())


def test_sync_calls_of_a_coroutine_run_on_the_thread_of_its_request(
    handler: PageHandler,
) -> None:
    async def asked() -> tuple[bytes, bytes]:
        return await body(handler, "/both-sides/"), await body(handler, "/thread/")

    coroutine, view = asyncio.run(asked())
    assert coroutine == view


def test_a_failing_view_returns_an_error_and_frees_its_thread(
    handler: PageHandler,
) -> None:
    async def asked() -> tuple[int, bytes, bytes]:
        before = await body(handler, "/thread/")
        failed = requested(handler, "/failing/")
        status = (await failed.receive_output(PATIENCE_S))["status"]
        await failed.wait(PATIENCE_S)
        return status, before, await body(handler, "/thread/")

    with override_settings(DEBUG_PROPAGATE_EXCEPTIONS=False):
        status, before, after = asyncio.run(asked())
    assert status == 500
    assert before == after


async def answered_beside(handler: PageHandler, taken: list[ApplicationCommunicator]) -> bytes:
    """Leaves earlier requests on the first thread alone, and holds up all threads but one.

    Returns the answer of a view in that state.
    """
    for number, each in enumerate(taken):
        if number % THREADS:
            await leave(each)
    waiting = [requested(handler, "/held-up/") for _ in range(THREADS - 1)]
    answer = await body(handler, "/thread/")
    released.set()
    for each in waiting:
        assert await body_of(each) == b"released"
    for each in taken[::THREADS]:
        await leave(each)
    return answer


async def leave(each: ApplicationCommunicator) -> None:
    await each.send_input({"type": "http.disconnect"})
    await each.wait(PATIENCE_S)


def opened(handler: PageHandler, address: str) -> ApplicationCommunicator:
    """Opens a request and sends only its head."""
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": address,
        "query_string": b"",
        "headers": [],
    }
    return ApplicationCommunicator(handler, scope)


def requested(handler: PageHandler, address: str) -> ApplicationCommunicator:
    asked = opened(handler, address)
    asked.input_queue.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    _ = asked.future  # which starts it
    return asked


async def body(handler: PageHandler, address: str) -> bytes:
    return await body_of(requested(handler, address))


async def body_of(asked: ApplicationCommunicator) -> bytes:
    assert (await asked.receive_output(PATIENCE_S))["status"] == 200
    answer: bytes = (await asked.receive_output(PATIENCE_S))["body"]
    await asked.wait(PATIENCE_S)
    return answer
