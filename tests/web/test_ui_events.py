"""The event stream: one poller for all tabs, each change sent to each tab, and a clean end."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest
from django.test import AsyncClient

from ftdash.ui import events
from ftdash.ui.events import VersionBoard, messages
from tests.web.journals import new_run
from tests.web.people import operator_user

TICK_S = 0.005
PATIENCE_S = 20.0


def test_a_tab_gets_all_versions_first_and_then_only_changes() -> None:
    versions = {"a": "1", "b": "1"}

    async def watch() -> list[dict[str, str]]:
        async with listening(lambda: versions) as stream:
            first = await next_change(stream)
            versions["b"] = "2"
            return [first, await next_change(stream)]

    assert asyncio.run(watch()) == [{"a": "1", "b": "1"}, {"b": "2"}]


def test_one_poller_serves_all_tabs_and_ends_with_the_last() -> None:
    reads: list[int] = []

    async def watch() -> tuple[int, int]:
        board = VersionBoard(lambda: {"a": str(reads.append(1) or len(reads))}, TICK_S)
        streams = [messages(board, beat_s=TICK_S) for _ in range(8)]
        for stream in streams:
            await next_change(stream)
        pollers = poller_count()
        for stream in streams:
            await stream.aclose()
        await asyncio.sleep(0)
        return pollers, poller_count()

    assert asyncio.run(watch()) == (1, 0)


def test_each_tab_is_updated_less_often_the_more_tabs_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def short(delay_s: float) -> None:
        slept.append(delay_s)
        await sleep(TICK_S)

    monkeypatch.setattr(events.random, "uniform", lambda low, high: 1.0)
    monkeypatch.setattr(events.asyncio, "sleep", short)

    async def watch(listeners: int) -> float:
        board = VersionBoard(lambda: {"a": str(len(slept))}, poll_s=0.0)
        streams = [messages(board) for _ in range(listeners)]
        for stream in streams:
            await next_change(stream)
        slept.clear()
        await next_change(streams[0])
        for stream in streams:
            await stream.aclose()
        return max(slept)

    assert asyncio.run(watch(1)) == pytest.approx(1 / events.REFRESHES_PER_S)
    assert asyncio.run(watch(30)) == pytest.approx(30 / events.REFRESHES_PER_S)
    assert asyncio.run(watch(900)) == events.BEAT_S


def test_the_board_knows_what_it_sent_only_while_tabs_listen() -> None:
    versions = {"a": "1"}

    async def watch() -> list[tuple[int, ...] | None]:
        board = events.board_of_this_loop(lambda: versions)
        board._poll_s = TICK_S
        known = [events.change_counts()]
        stream = messages(board, beat_s=TICK_S)
        for value in ("1", "2"):
            versions["a"] = value
            await next_change(stream)
            known.append(events.change_counts())
        await stream.aclose()
        return [*known, events.change_counts()]

    before, first, second, after = asyncio.run(watch())

    assert before is after is None
    assert None is not first != second is not None


def test_a_quiet_stream_sends_heartbeats() -> None:
    async def watch() -> list[str]:
        async with listening(lambda: {"a": "1"}) as stream:
            await next_change(stream)
            return [name_of(await anext(stream)) for _ in range(3)]

    assert asyncio.run(watch()) == ["beat"] * 3


def test_a_stream_ends_at_its_maximum_age_and_asks_for_a_new_one() -> None:
    async def watch() -> list[str]:
        board = VersionBoard(lambda: {}, TICK_S)
        return [name_of(m) async for m in messages(board, beat_s=TICK_S, age_max_s=5 * TICK_S)]

    assert asyncio.run(watch())[-1] == "renew"


def test_a_stream_ends_when_its_source_fails() -> None:
    def broken() -> dict[str, str]:
        raise OSError("the disk is gone")

    async def watch() -> None:
        async with listening(broken) as stream:
            async for _ in stream:
                pass

    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(asyncio.wait_for(watch(), PATIENCE_S))


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_stream_of_the_page_sends_only_versions() -> None:
    new_run()
    client = AsyncClient()
    client.force_login(operator_user())

    async def watch() -> tuple[str, dict[str, str]]:
        answer = await client.get("/changes/")
        async with aclosing(aiter(answer.streaming_content)) as stream:
            return answer["Content-Type"], await next_change(stream)

    content_type, told = asyncio.run(asyncio.wait_for(watch(), PATIENCE_S))

    assert content_type.startswith("text/event-stream")
    assert list(told) == ["flights"]
    assert isinstance(told["flights"], str)


def poller_count() -> int:
    return sum("VersionBoard._poll" in repr(task) for task in asyncio.all_tasks())


def listening(read: Callable[[], dict[str, str]]) -> aclosing[AsyncIterator[bytes]]:
    return aclosing(messages(VersionBoard(read, TICK_S), beat_s=TICK_S))


async def next_change(stream: AsyncIterator[bytes]) -> dict[str, str]:
    async for message in stream:
        if name_of(message) == "changed":
            return dict(json.loads(message.decode().splitlines()[1].removeprefix("data: ")))
    raise AssertionError("the stream ended without a change")


def name_of(message: bytes) -> str:
    return message.decode().splitlines()[0].removeprefix("event: ")
