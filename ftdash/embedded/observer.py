"""Waits for conditions in the rows, each wait with its bound and its sentence."""

from collections.abc import Callable
from pathlib import Path

from ftdash.checkpoints.models import CheckpointStatus
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.embedded.supervisor import wait_until
from ftdash.jobs.answers import RequestView, RunView, ShownState
from ftdash.jobs.models import RequestPhase
from ftdash.runs.queries import pipelines as queries
from pipelines.domain.errors import Rejected

POINTS_MAX = 10_000
ENDED_BADLY = (ShownState.FAILED, ShownState.CANCELED)


class Observer:
    """Sees one pipeline as its page does. Calls `beside` with every look while it waits."""

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
        """A newer attempt runs and has completed a checkpoint of its own."""

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
        """The number in all runs."""
        axes = [queries.recovery_axis(run_id, POINTS_MAX) for run_id in self._run_ids()]
        return sum(len(axis.points) for axis in axes if axis is not None)

    def recoveries_ms(self) -> list[float]:
        """From the last sign of life to all subtasks running, oldest first."""
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
