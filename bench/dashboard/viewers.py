"""Do viewers slow a pipeline's checkpoints?

Expected: no. Each of 200 tabs holds one event stream and requests the page's regions after a
change, all of them together at most some 100 times a second. An answer that another tab got before
takes some 5 ms of the web server. That is half a core, beside a pipeline that is paced.

The complete demonstration runs, as a person starts it. Windows without viewers and windows with all
viewers take turns, in the order ABBA. `ratio` is the median end-to-end duration of the checkpoints
that were triggered with viewers, over that without. Real viewers have their own machines, but here
they share this one. So a client that costs little simulates them (0.06 of a core; httpx took 0.9,
and with it a checkpoint was 1.5 times as long). `refresh_p95_ms` is how long a tab waited for its
regions.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from aiohttp import ClientSession, ClientTimeout, CookieJar, TCPConnector

from bench.benchmark import Benchmark, Fields, at_most, progress
from tests.integration.demonstration import Demo

PIPELINE = "flight_delays"
VIEWERS = 200
PAIRS = 3
WINDOW_S = 20.0
ENDING_S = 60.0
ANSWER_S = 20.0  # until a tab gives up
ASK_EVERY_S = 3.0  # like static/js/live.js while the stream is silent
BARS = (at_most("ratio", 1.25),)


@dataclass(slots=True)
class Watched:
    """The refreshes and failures of the viewers in all windows."""

    refreshes: list[tuple[float, float]] = field(default_factory=list)  # when, and milliseconds
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time, in seconds since the epoch, and its number of viewers."""

    from_s: float
    to_s: float
    viewers: int

    def __contains__(self, at_s: float) -> bool:
        return self.from_s <= at_s < self.to_s


def main() -> None:
    benchmark = Benchmark("viewers", __doc__)
    benchmark.options.add_argument("--viewers", type=int, default=VIEWERS)
    benchmark.options.add_argument("--pairs", type=int, default=PAIRS)
    benchmark.options.add_argument("--window-s", type=float, default=WINDOW_S)
    options = benchmark.options.parse()
    with tempfile.TemporaryDirectory(prefix="ftdash-bench-") as directory:
        home = Path(directory) / "home"
        with Demo(home, signal.SIGUSR1) as demo:
            try:
                demo.wait_said(rf"{PIPELINE} RUNNING .* checkpoint \d+ completed")
                address = demo.said(r"Dashboard +(\S+)")
                password = demo.said(r"admin +password (\S+)")
                measured = asyncio.run(
                    measure(address, password, options.viewers, options.pairs, options.window_s)
                )
            finally:
                demo.process.send_signal(signal.SIGINT)  # it ends all that it has started
                demo.process.wait(ENDING_S)
    benchmark.report(measured, BARS)


async def measure(address: str, password: str, viewers: int, pairs: int, window_s: float) -> Fields:
    watched = Watched()
    windows: list[Window] = []
    async with ClientSession(
        address,
        connector=TCPConnector(limit=0),  # no limit on connections
        cookie_jar=CookieJar(unsafe=True),  # also accepts cookies of a host given as an IP address
        timeout=ClientTimeout(total=ANSWER_S),
        raise_for_status=True,
    ) as browser:
        await sign_in(browser, password)
        for number in range(pairs):
            for watching in (0, viewers) if number % 2 == 0 else (viewers, 0):
                progress(f"pair {number + 1} of {pairs}: {watching} viewers")
                windows.append(await window(browser, watching, window_s, watched))
        async with browser.get(f"/pipelines/{PIPELINE}/checkpoints/history.json") as answer:
            rows = await answer.json()
    return compared(rows, windows, watched)


async def sign_in(browser: ClientSession, password: str) -> None:
    async with browser.get("/login/"):
        token = {"X-CSRFToken": cookies(browser)["csrftoken"]}
    account = {"username": "admin", "password": password}
    async with browser.post("/login/", data=account, headers=token):
        if "sessionid" not in cookies(browser):
            raise RuntimeError("the dashboard did not let admin sign in")


def cookies(browser: ClientSession) -> dict[str, str]:
    return {cookie.key: cookie.value for cookie in browser.cookie_jar}


async def window(browser: ClientSession, viewers: int, window_s: float, watched: Watched) -> Window:
    """Starts the viewers, waits until all of them watch, and counts from then on."""
    tabs = [asyncio.create_task(watch(browser, watched)) for _ in range(viewers)]
    await asyncio.sleep(window_s / 4)
    began_s = time.time()
    await asyncio.sleep(window_s)
    ended_s = time.time()
    for tab in tabs:
        tab.cancel()
    ends = await asyncio.gather(*tabs, return_exceptions=True)
    watched.failures += sum(not isinstance(each, asyncio.CancelledError) for each in ends)
    return Window(began_s, ended_s, viewers)


async def watch(browser: ClientSession, watched: Watched) -> None:
    """One tab: it refreshes when its pipeline changes, and regularly while the stream is silent."""
    changed = asyncio.Event()
    listening = asyncio.create_task(listen(browser, changed))
    try:
        while not listening.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY_S):  # wait_for may lose a cancellation
                    await changed.wait()
            changed.clear()
            began_s = time.perf_counter()
            async with browser.get(f"/pipelines/{PIPELINE}/regions/") as answer:
                await answer.read()
            watched.refreshes.append((time.time(), (time.perf_counter() - began_s) * 1000))
        listening.result()
    finally:
        listening.cancel()


async def listen(browser: ClientSession, changed: asyncio.Event) -> None:
    async with browser.get("/changes/", timeout=ClientTimeout(total=None)) as stream:
        async for line in stream.content:
            if line.startswith(b"data:") and PIPELINE.encode() in line:
                changed.set()


def compared(
    rows: Sequence[Mapping[str, Any]], windows: Sequence[Window], watched: Watched
) -> Fields:
    alone = [ms for each in windows if not each.viewers for ms in durations(rows, each)]
    beside = [ms for each in windows if each.viewers for ms in durations(rows, each)]
    watching = [each for each in windows if each.viewers]
    refreshes = sorted(ms for at_s, ms in watched.refreshes if any(at_s in w for w in watching))
    seconds = sum(each.to_s - each.from_s for each in watching)
    return {
        "ratio": round(median(beside) / median(alone), 3) if alone and beside else None,
        "alone_ms": round(median(alone), 1) if alone else None,
        "watched_ms": round(median(beside), 1) if beside else None,
        "checkpoints": [len(alone), len(beside)],
        "viewers": max(each.viewers for each in windows),
        "refreshes_per_s": round(len(refreshes) / seconds, 1) if seconds else 0.0,
        "refresh_p95_ms": round(_p95(refreshes), 1) if refreshes else None,
        "failed_tabs": watched.failures,
    }


def durations(rows: Sequence[Mapping[str, Any]], of: Window) -> list[float]:
    """Returns the end-to-end milliseconds of the completed checkpoints triggered in the window."""
    return [
        float(row["end_to_end_ms"])
        for row in rows
        if row["end_to_end_ms"] is not None
        and datetime.fromisoformat(row["trigger_at"]).timestamp() in of
    ]


def _p95(values: list[float]) -> float:
    """Computes the percentile as the pages do."""
    return float(np.quantile(values, 0.95, method="weibull"))


if __name__ == "__main__":
    main()
