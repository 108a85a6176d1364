"""The listener itself: turns Spark's calls into events, and hands them to the reporter.

Spark calls `onQueryStarted` while `start()` waits, and the other methods from its listener thread.
Each call formats one short text; nothing here waits or raises.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.streaming import StreamingQueryListener

from ftdash_listener.sending import Reporter, log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE_LENGTH_MAX = 20_000
"""The limit for the text of an exception; the traces of a cluster are longer."""


def watch(spark: SparkSession, url: str, token: str) -> ProgressListener:
    """Report all queries of this session, also those that you start later.

    `url` is the dashboard's address, `token` a token with the scope `listen`. Never raises: it logs
    a problem as a warning to `ftdash_listener`, and your job continues without a report.
    """
    listener = ProgressListener(url, token)
    try:
        spark.streams.addListener(listener)
    except Exception as problem:  # the job matters more than its report
        log.warning("The listener could not be added, nothing is reported: %r", problem)
    return listener


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]  # pyspark has no types
    """Starts its thread at the first event, so that Spark Connect 3.5 can send it to the server."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._reporter: Reporter | None = None
        self._registered: Any = None  # the object that a classic session calls

    def __getstate__(self) -> dict[str, Any]:
        kept = {"_url": self._url, "_token": self._token}
        return {**kept, "_reporter": None, "_registered": None}

    @property
    def _jlistener(self) -> Any:
        """The object that pyspark adds to a classic session, and removes from it."""
        if self._registered is None:
            try:
                self._registered = _in_the_jvm(self)
            except Exception as problem:  # a version of pyspark that is not tested
                log.info("The listener takes the longer way through pyspark: %r", problem)
                self._registered = super()._jlistener
        return self._registered

    @property
    def reporter(self) -> Reporter:
        if self._reporter is None:
            about = {"spark": pyspark.__version__}
            self._reporter = Reporter(self._url, self._token, about)
            self._reporter.start()
            atexit.register(self._reporter.close)
        return self._reporter

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
        self._say("started", event, lambda: {"timestamp": event.timestamp, "name": event.name})

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self._say("idle", event, lambda: {"timestamp": event.timestamp})

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._say("terminated", event, lambda: _end_of(event))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.on_progress(lambda: (str(event.progress.id), event.progress.json))

    def on_progress(self, read: Callable[[], tuple[str, str]]) -> None:
        """`read` returns the query's id and Spark's own JSON, which is reported unchanged."""
        try:
            query_id, progress = read()
            self.reporter.put(query_id, f'{{"kind": "progress", "progress": {progress}}}')
        except Exception as problem:
            log.warning("A progress event was not reported: %r", problem)

    def _say(self, kind: str, event: Any, more: Callable[[], dict[str, Any]]) -> None:
        try:
            query_id = str(event.id)
            said = {"kind": kind, "id": query_id, "runId": str(event.runId), **more()}
            self.reporter.put(query_id, json.dumps(said))
        except Exception as problem:
            log.warning("That a query %s was not reported: %r", kind, problem)


def _in_the_jvm(listener: ProgressListener) -> Any:
    """Returns the listener as an object of the JVM, which reads a progress with two calls.

    pyspark's own listener first copies it field by field. That takes hundreds of calls into the JVM
    and 36 ms of processor time per batch, which the query needs.
    """
    from pyspark import SparkContext
    from pyspark.sql.streaming.listener import JStreamingQueryListener

    class Direct(JStreamingQueryListener):  # type: ignore[misc]  # pyspark has no types
        def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802  # Spark's name
            progress = jevent.progress()
            listener.on_progress(lambda: (progress.id().toString(), progress.json()))

    return SparkContext._jvm.PythonStreamingQueryListenerWrapper(Direct(listener))


def _end_of(event: Any) -> dict[str, Any]:
    """Describes the end of a query. The event has no time, so this takes the current one."""
    exception = event.exception
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(),  # noqa: UP017  # Python 3.8
        "exception": str(exception)[:MESSAGE_LENGTH_MAX] if exception is not None else None,
        "errorClass": getattr(event, "errorClassOnException", None),
    }
