"""The pipelines that `demo --check` knows: how the input of each ends, and its right answer.

A plain Spark SQL batch query answers the same question and compares the answers. It shares no code
with the engine, and runs as a separate process into which nothing of the engine is loaded.
"""

import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from django.conf import settings

from ftdash.embedded import demo, page_views
from ftdash.embedded.demo import DemoPaths
from ftdash.embedded.observer import Observer
from ftdash.embedded.outcome import CheckOutcome, Comparison, OracleAnswer
from ftdash.embedded.page_views import PageViews
from ftdash.embedded.stack import module
from ftdash.embedded.supervisor import Service, last_words
from ftdash.jobs.answers import RunView, ShownState
from ftdash.requests import services
from ftdash.supervision import java
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.errors import Rejected

WITHIN_S = 120


def compare_with_batch(paths: DemoPaths) -> OracleAnswer:
    """Raises Rejected if the query does not answer in time."""
    home = Path(settings.FTDASH_HOME)
    log, answer = home / "logs" / "oracle.log", home / "oracle.json"
    ask(paths, answer, log)
    return msgspec.json.decode(answer.read_bytes(), type=OracleAnswer)


def ask(paths: DemoPaths, answer: Path, log: Path) -> None:
    arguments = (paths.data, paths.files_output, paths.sql_output, answer)
    command = module("pipelines.spark.flight_oracle", *map(str, arguments))
    environment = os.environ | java.environment()
    with log.open("wb") as output:
        try:
            subprocess.run(
                command,
                cwd=settings.BASE_DIR,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=WITHIN_S,
                check=True,
            )
        except subprocess.SubprocessError as failure:
            raise Rejected(f"The batch query failed: {failure}. {last_words(log)}") from failure


EVENT_HOURS_PER_S = 8760 / 45  # the year passes in three quarters of a minute
VIEWS_PER_S = 400.0
VIEWS_PER_SPLIT = 12_000  # a minute
FEED_SEED = 1
FINISH_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`sinks` by name, each compared with the same rows."""

    rows_expected: int
    sinks: dict[str, Comparison]


class CheckedPipeline(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def restores_older(self) -> bool:
        """True if the restore goes back to before output that is visible already: all sinks must be
        able to take such output back."""
        ...

    def services(self) -> Iterator[Service]:
        """See `demo.Demonstration`."""
        ...

    def start(self) -> None: ...

    def finish(self, observer: Observer) -> None:
        """Returns once all input is processed and committed. Raises Rejected."""
        ...

    def answer(self) -> Answer:
        """Compares what each sink holds with the right answer. Raises Rejected."""
        ...

    def outcome(self) -> CheckOutcome:
        """The outcome before anything is done: where the output will be."""
        ...


@dataclass(frozen=True, slots=True)
class CheckedFlights:
    """One year; the answer is a Spark SQL batch query's."""

    paths: DemoPaths
    name: str = demo.NAME
    restores_older: bool = True

    def services(self) -> Iterator[Service]:
        return iter(())

    def start(self) -> None:
        demo.prepare_data(self.paths)
        demo.submit(self.paths, event_hours_per_s=EVENT_HOURS_PER_S, forever=False, why="check")

    def finish(self, observer: Observer) -> None:
        observer.wait_state(ShownState.FINISHED, within_s=FINISH_WITHIN_S)

    def answer(self) -> Answer:
        found = compare_with_batch(self.paths)
        return Answer(found.rows_expected, {"files": found.files, "SQL": found.sql})

    def outcome(self) -> CheckOutcome:
        files, table = str(self.paths.files_output), str(self.paths.sql_output)
        return CheckOutcome(files_output=files, sql_output=table)


@dataclass(frozen=True, slots=True)
class CheckedViews:
    """A fixed number of views, counted again one by one. Its tables, topics and keys are its own,
    because configured systems may hold those of others.

    Kafka keeps what was published, so the restore does not go back to before visible output.
    """

    views: PageViews = field(default_factory=lambda: views_of(f"check_{secrets.token_hex(3)}"))
    name: str = page_views.NAME
    restores_older: bool = False

    def services(self) -> Iterator[Service]:
        return self.views.services()

    def start(self) -> None:
        self.views.prepare()
        self.views.submit()

    def finish(self, observer: Observer) -> None:
        """Drains the pipeline, which closes its windows; the input has no end of its own."""
        wanted = page_views.SPLITS * VIEWS_PER_SPLIT
        observer.wait_run(
            lambda run: records_read(run) >= wanted,
            f"Not all of {wanted:,} views were read",
            within_s=FINISH_WITHIN_S,
        )
        command = StopWithSavepoint(drain=True)
        services.ask(self.name, command, who="demo", why="all views were read")
        observer.wait_state(ShownState.FINISHED, within_s=FINISH_WITHIN_S)

    def answer(self) -> Answer:
        right = page_views.expected(FEED_SEED, VIEWS_PER_SPLIT, page_views.SPLITS)
        found = {
            system: page_views.compared(right, self._rows_in(system))
            for system in page_views.systems()
        }
        return Answer(len(right), found)

    def outcome(self) -> CheckOutcome:
        return CheckOutcome(files_output=str(page_views.files_output()))

    def _rows_in(self, system: str) -> list[page_views.Row]:
        from pipelines.flows import page_view_feed as servers

        target = self.views.prefix
        match system:
            case "redis":
                return page_views.in_redis(servers.redis_url(), target)
            case "postgres":
                return page_views.in_postgres(servers.database_url(), target)
            case "kafka":
                address = servers.kafka_address()
                return page_views.in_kafka(address.settings(lambda error: None), target)
            case _:
                return page_views.in_files(page_views.files_output(), target)


def views_of(prefix: str) -> PageViews:
    return PageViews(
        VIEWS_PER_S,
        prefix=prefix,
        input=f"{prefix}_views",
        views_per_split=VIEWS_PER_SPLIT,
    )


def records_read(run: RunView) -> int:
    return sum(count for name, count in run.counters.items() if name.endswith(".records_read"))


def checked(name: str) -> CheckedPipeline:
    return CheckedViews() if name == page_views.NAME else CheckedFlights(DemoPaths.of_home())
