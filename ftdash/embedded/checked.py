"""The pipelines that `demo --check` knows: how the input of each ends, and its right answer.

A plain Spark SQL batch query answers the same question and compares the answers. It shares no code
with the engine, and runs as a separate process into which nothing of the engine is loaded.

An `Observer` waits for conditions in the rows. Each wait has a time limit and a sentence that says
what did not happen.
"""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from django.conf import settings

from ftdash.checkpoints.models import CheckpointStatus
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.embedded import demo, page_views
from ftdash.embedded.demo import DemoPaths
from ftdash.embedded.outcome import CheckOutcome, Comparison, OracleAnswer
from ftdash.embedded.page_views import PageViews
from ftdash.embedded.stack import module
from ftdash.embedded.supervisor import Service, last_words, wait_until
from ftdash.jobs.answers import RequestView, RunView, ShownState
from ftdash.jobs.models import RequestPhase
from ftdash.requests import services
from ftdash.runs.queries import pipelines as queries
from ftdash.supervision import java
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.errors import Rejected

POINTS_MAX = 10_000
LOOK_EVERY_S = 0.5
"""A look reads all that a pipeline's page shows, which takes some tens of milliseconds."""

ENDED_BADLY = (ShownState.FAILED, ShownState.CANCELED)


class Observer:
    """Sees one pipeline as its page does. Calls `beside` at every look while it waits."""

    def __init__(self, pipeline: str, beside: Callable[[], None]) -> None:
        self._pipeline = pipeline
        self._beside = beside

    def run(self) -> RunView:
        """Raises Rejected if the pipeline has not been started."""
        run = self._run_if_any()
        if run is None:
            raise Rejected(f"{self._pipeline} has not been started.")
        return run

    def wait_running_with_checkpoints(self, count: int, *, within_s: float) -> RunView:
        return self._wait(
            lambda run: run.state is ShownState.RUNNING and self._completed(run) >= count,
            f"{self._pipeline} did not run and complete {count} checkpoints",
            within_s,
        )

    def wait_checkpoints_after(self, before: RunView, *, count: int, within_s: float) -> RunView:
        least = (before.last_checkpoint_id or 0) + count
        return self._wait(
            lambda run: (run.last_checkpoint_id or 0) >= least,
            f"No {count} further checkpoints completed",
            within_s,
        )

    def wait_recovered(self, before: RunView, *, within_s: float) -> RunView:
        """Waits until a newer attempt runs and has completed a checkpoint of its own."""

        def has_recovered(run: RunView) -> bool:
            is_newer = run.run_id == before.run_id and run.attempt > before.attempt
            return is_newer and run.state is ShownState.RUNNING and self._has_progressed(run)

        return self._wait(has_recovered, f"{self._pipeline} did not recover", within_s)

    def wait_new_run(self, before: str, *, within_s: float) -> RunView:
        return self._wait(lambda run: run.run_id != before, "No new run was started", within_s)

    def wait_state(self, state: ShownState, *, within_s: float) -> RunView:
        return self._wait(
            lambda run: run.state is state, f"{self._pipeline} did not get {state}", within_s
        )

    def wait_run(
        self, holds: Callable[[RunView], bool], otherwise: str, *, within_s: float
    ) -> RunView:
        return self._wait(holds, otherwise, within_s)

    def wait_granted(self, request_id: str, *, within_s: float) -> RequestView:
        """Returns when the request has ended. Raises Rejected if it was not granted."""
        self._until(
            lambda: not self._request(request_id).is_open,
            lambda: f"The request {self._request(request_id).label} did not end",
            within_s,
        )
        request = self._request(request_id)
        if request.phase != RequestPhase.SUCCEEDED:
            raise Rejected(f"The request {request.label} {request.phase_label}: {request.message}")
        return request

    def has_failed_checkpoint(self, before: RunView) -> bool:
        """True if the attempt of `before` left an unfinished checkpoint."""
        history = checkpoint_queries.checkpoints(before.run_id)
        rows = history.rows if history is not None else []
        failed = [row for row in rows if row.status == CheckpointStatus.FAILED]
        return any(row.attempt == before.attempt and row.checkpoint_id for row in failed)

    def checkpoints_completed(self) -> int:
        """Returns the number of completed checkpoints in all runs."""
        axes = [queries.recovery_axis(run_id, POINTS_MAX) for run_id in self._run_ids()]
        return sum(len(axis.points) for axis in axes if axis is not None)

    def recoveries_ms(self) -> list[float]:
        """Returns the times from the last sign of life to all subtasks running, oldest first."""
        axes = [queries.recovery_axis(run_id, 1) for run_id in reversed(self._run_ids())]
        recoveries = [each for axis in axes if axis is not None for each in axis.recoveries]
        return [round(r.to_running_ms, 1) for r in recoveries if r.to_running_ms is not None]

    def driver_log(self) -> Path | None:
        run = self._run_if_any()
        return Path(run.driver_log_path) if run is not None else None

    def _wait(self, holds: Callable[[RunView], bool], otherwise: str, within_s: float) -> RunView:
        def is_so() -> bool:
            run = self._run_if_any()
            if run is None:
                return False
            if holds(run):
                return True
            if run.state in ENDED_BADLY:
                raise Rejected(f"{otherwise}: it is {run.state}. {run.state_reason}")
            return False

        self._until(is_so, lambda: otherwise, within_s)
        return self.run()

    def _until(
        self, holds: Callable[[], bool], otherwise: Callable[[], str], within_s: float
    ) -> None:
        def look() -> bool:
            self._beside()
            return holds()

        wait_until(
            look,
            within_s=within_s,
            otherwise=lambda: f"{otherwise()} within {within_s:.0f} s. {self._state()}",
            every_s=LOOK_EVERY_S,
        )

    def _state(self) -> str:
        run = self._run_if_any()
        return f"It is {run.state}. {run.state_reason}" if run is not None else "It has no run."

    def _completed(self, run: RunView) -> int:
        axis = queries.recovery_axis(run.run_id, POINTS_MAX)
        return len(axis.points) if axis is not None else 0

    def _has_progressed(self, run: RunView) -> bool:
        """True if a checkpoint completed after all subtasks of the newest attempt were running."""
        axis = queries.recovery_axis(run.run_id, 1)
        if axis is None or run.last_completed_at is None:
            return False
        running = [each.running_at for each in axis.recoveries if each.attempt == run.attempt]
        known = [at for at in running if at is not None]
        return len(known) == len(running) > 0 and run.last_completed_at > max(known)

    def _run_ids(self) -> list[str]:
        page = queries.pipeline_page(self._pipeline)
        return [run.run_id for run in page.runs] if page is not None else []

    def _run_if_any(self) -> RunView | None:
        page = queries.pipeline_page(self._pipeline)
        return page.run if page is not None else None

    def _request(self, request_id: str) -> RequestView:
        request = queries.request(request_id)
        if request is None:
            raise Rejected(f"The request {request_id} has no row.")
        return request


BATCH_WITHIN_S = 600
"""An idle machine needs a quarter of a minute; a busy machine needs a multiple of that."""


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
                timeout=BATCH_WITHIN_S,
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
        """True if the restore goes back to a point before output that is already visible.

        All sinks must be able to take such output back.
        """
        ...

    def services(self) -> Iterator[Service]:
        """See `demo.Demonstration`."""
        ...

    def start(self) -> None: ...

    def finish(self, observer: Observer) -> None:
        """Returns once all input is processed and committed. Raises Rejected if that fails."""
        ...

    def answer(self) -> Answer:
        """Compares each sink's rows with the right answer. Raises Rejected if it cannot."""
        ...

    def outcome(self) -> CheckOutcome:
        """Returns the outcome before the first step: it says where the output will be."""
        ...


@dataclass(frozen=True, slots=True)
class CheckedFlights:
    """One year of flights; the right answer is that of a Spark SQL batch query."""

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
    """A fixed number of views, which the right answer counts again one by one.

    It has tables, topics and keys of its own, because configured systems may contain those of
    others. Kafka keeps published records, so the restore does not go back to a point before visible
    output.
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
