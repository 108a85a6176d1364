"""The demonstration `page_views`: generated views from a feed, counted into all configured systems.

By default, views and counts are on a Redis of our own, and counts also in files. Systems that the
environment names (see `pipelines.flows.page_view_logs`) are used as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from ftdash.embedded import stack
from ftdash.embedded.installation import own_views_redis
from ftdash.embedded.ports import LOOPBACK
from ftdash.embedded.supervisor import Service
from ftdash.requests import services
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import RequestId
from pipelines.flows.page_view_logs import DATABASE, KAFKA, REDIS, is_configured

NAME = "page_views"
INPUT = "page-views"
SPLITS = 2
VIEWS_PER_S = 200.0
CHECKPOINTING = {"execution.checkpointing.interval": "1 s"}


@dataclass(frozen=True, slots=True)
class PageViews:
    """Implements `demo.Demonstration`."""

    views_per_s: float = VIEWS_PER_S
    name: str = NAME
    prefix: str = NAME  # of tables, topics and keys
    input: str = INPUT
    views_per_split: int | None = None  # None: endless

    def services(self) -> Iterator[Service]:
        """Our own servers, then the feed, which continues where it had stopped."""
        yield from stack.views_redis()
        if is_configured(KAFKA):
            provide_topics(self.input, self.prefix)
        yield self._feed()

    def prepare(self) -> None:
        files_output().mkdir(parents=True, exist_ok=True)

    def submit(self) -> RequestId:
        return services.submit_pipeline(
            name=NAME,
            flow=NAME,
            requester="demo",
            reason="demonstration",
            parallelism=SPLITS,
            parameters={
                "source": source(),
                "input": self.input if source() == "kafka" else ",".join(streams(self.input)),
                "into": ",".join(systems()),
                "target": self.prefix,
                "output": str(files_output()),
            },
            settings=CHECKPOINTING,
            allows_faults=True,  # people are meant to kill it
        )

    def output(self) -> list[str]:
        """Omits addresses that the user gave, which may hold passwords."""
        given = [system for system in systems() if system in ("postgres", "kafka")]
        lines = [f"{NAME}_windows and {NAME}_totals in {system}" for system in given]
        return [*_in_redis(), *lines, str(files_output())]

    def _feed(self) -> Service:
        words = ("--to", source(), "--name", self.input, "--splits", str(SPLITS))
        pace = ["--views-per-s", f"{self.views_per_s:g}"]
        if self.views_per_split is not None:
            pace += ["--views-per-split", str(self.views_per_split)]
        return Service(
            name="page-view-feed",
            command=stack.module("pipelines.flows.page_view_feed", *words, *pace),
            is_ready=lambda: has_views(self.input),
            ready_within_s=stack.READY_WITHIN_S,
        )


def _in_redis() -> list[str]:
    key = f"{{{NAME}_totals}}:row:app-00"
    ours = own_views_redis()
    if ours is None:
        return [f"'{key}' and its like in the Redis of {REDIS}"]
    password = Path(settings.FTDASH_HOME) / "views-redis" / "redis.conf"
    return [
        f"redis-cli -h {LOOPBACK} -p {ours.port} HGETALL '{key}'",
        f"  after AUTH with the password in {password}",
    ]


def source() -> str:
    return "kafka" if is_configured(KAFKA) else "redis"


def systems() -> list[str]:
    """The systems that get the counts."""
    found = {"postgres": DATABASE, "kafka": KAFKA}
    return [
        "redis",
        *(name for name, variable in found.items() if is_configured(variable)),
        "files",
    ]


def streams(name: str) -> list[str]:
    from pipelines.flows.page_view_logs import stream_of

    return [stream_of(name, split) for split in range(SPLITS)]


def files_output() -> Path:
    return Path(settings.FTDASH_HOME) / "output" / NAME


def provide_topics(views: str, prefix: str) -> None:
    """Raises Rejected if the brokers do not answer."""
    from pipelines.flows.page_view_logs import kafka_address, provide_topic

    try:
        for topic in (views, f"{prefix}_windows", f"{prefix}_totals"):
            provide_topic(kafka_address(), topic, SPLITS)
    except Retryable as failure:
        raise Rejected(f"{failure}.") from failure


def has_views(name: str = INPUT) -> bool:
    """True if every split exists, so that a pipeline can read it."""
    from pipelines.flows.page_view_logs import open_log

    try:
        log = open_log(source(), name)
        return all(log.count(split) for split in range(SPLITS))
    except Retryable:
        return False
