"""Keeps events in a bounded queue, and sends them from a separate thread.

Guarantee: no call from a query waits for the network or raises. `put` takes a lock that is held
only for microseconds, and the sending thread is a daemon. A full queue drops its oldest event and
counts it for its query; reports include the count until it has arrived.

An event leaves the queue when the dashboard has answered. If an answer gets lost, the reporter
sends the event again, and the dashboard stores it once. Sending again cannot help against some
refusals (a revoked token, a malformed report). Then the reporter drops the events and counts them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

VERSION = "0.1.0"
ADDRESS = "/api/watched-queries/events"
EVENTS_MAX = 1_000
QUEUE_BYTES_MAX = 8_000_000
REPORT_EVENTS_MAX = 200
REPORT_BYTES_MAX = 1_000_000
TIMEOUT_S = 5.0
"""The limit for each step of a request: to connect, to send, and to wait for the answer."""

PAUSE_S = 1.0
PAUSE_MAX_S = 30.0
FAREWELL_S = 2.0
"""How long the end of the process waits for the last report."""

NOT_HEALED_BY_WAITING = (400, 401, 403, 404, 405, 413, 422)

log = logging.getLogger("ftdash_listener")


class Queued(NamedTuple):
    query_id: str
    text: str  # the event as JSON


@dataclass(frozen=True)
class Statistics:
    queued: int
    sent: int
    dropped: int


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the token to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Reporter:
    """Sends events to the dashboard. Call `start` once, then `put` for each event."""

    def __init__(self, url: str, token: str, about: dict[str, str]) -> None:
        self._url = url.rstrip("/") + ADDRESS
        self._token = token
        self._about = {**about, "listener": uuid.uuid4().hex, "version": VERSION}
        self._lock = threading.Condition()
        self._queue: deque[Queued] = deque()
        self._bytes = self._sent = 0
        self._dropped: dict[str, int] = {}
        self._is_closing = False
        self._last_problem = ""
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._thread = threading.Thread(target=self._run, name="ftdash-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, query_id: str, text: str) -> None:
        with self._lock:
            self._queue.append(Queued(query_id, text))
            self._bytes += len(text)
            while len(self._queue) > EVENTS_MAX or self._bytes > QUEUE_BYTES_MAX:
                self._drop()
            self._lock.notify()

    def statistics(self) -> Statistics:
        with self._lock:
            return Statistics(len(self._queue), self._sent, sum(self._dropped.values()))

    def close(self) -> None:
        """Sends the queued events, within `FAREWELL_S`."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        self._thread.join(FAREWELL_S)

    def _drop(self) -> None:
        gone = self._queue.popleft()
        self._bytes -= len(gone.text)
        self._dropped[gone.query_id] = self._dropped.get(gone.query_id, 0) + 1

    def _run(self) -> None:
        pause_s = 0.0
        while self._wait(pause_s):
            try:
                is_over = self._send()
            except Exception as problem:  # the edge of the thread: a query never notices
                self._complain(f"The report failed: {problem!r}")
                is_over = False
            pause_s = 0.0 if is_over else min(PAUSE_MAX_S, max(PAUSE_S, 2 * pause_s))
            if self._is_closing and not is_over:
                return

    def _wait(self, pause_s: float) -> bool:
        """Waits for something to send. Returns False if all was sent and the process ends."""
        ends_s = time.monotonic() + pause_s
        with self._lock:
            while not self._is_closing and (left := ends_s - time.monotonic()) > 0:
                self._lock.wait(left)
            while not self._queue and not self._is_closing:
                self._lock.wait()
            return bool(self._queue)

    def _send(self) -> bool:
        """Returns True if the dashboard has accepted the events and they have left the queue."""
        with self._lock:
            events, dropped = self._first(), dict(self._dropped)
        status, said = self._post(events, dropped)
        if 200 <= status < 300:
            self._take_off(events, is_dropped=False)
            return True
        self._complain(f"The dashboard answered {status}: {said}")
        if status in NOT_HEALED_BY_WAITING:
            self._take_off(events, is_dropped=True)
        return False

    def _first(self) -> list[Queued]:
        taken: list[Queued] = []
        size = 0
        for each in self._queue:
            size += len(each.text)
            if taken and (len(taken) == REPORT_EVENTS_MAX or size > REPORT_BYTES_MAX):
                break
            taken.append(each)
        return taken

    def _take_off(self, events: list[Queued], *, is_dropped: bool) -> None:
        """Removes the events. Some may have been dropped meanwhile, from the same end."""
        with self._lock:
            for each in events:
                if not self._queue or self._queue[0] is not each:
                    continue
                if is_dropped:
                    self._drop()
                    continue
                self._bytes -= len(self._queue.popleft().text)
                self._sent += 1
            self._last_problem = self._last_problem if is_dropped else ""

    def _post(self, events: list[Queued], dropped: dict[str, int]) -> tuple[int, str]:
        head = json.dumps({**self._about, "dropped": dropped})
        body = f'{head[:-1]}, "events": [{",".join(each.text for each in events)}]}}'
        request = urllib.request.Request(
            self._url,
            data=body.encode("utf-8", "replace"),
            headers={
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
                "User-Agent": f"ftdash-listener/{VERSION}",
            },
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read(2_000).decode("utf-8", "replace")
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read(2_000).decode("utf-8", "replace")

    def _complain(self, problem: str) -> None:
        """Logs the same problem only once, so that an outage does not fill the log."""
        if problem != self._last_problem:
            log.warning("%s Your queries continue; events wait or are counted as dropped.", problem)
        self._last_problem = problem
