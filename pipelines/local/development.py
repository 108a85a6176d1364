"""One run of `ftdash dev`, in a separate process: `python -m pipelines.local.development DIR`.

The task in DIR says what to run. This process updates the view in DIR, which shows the run's
progress, about twice a second; the process that started it displays the view. SIGTERM asks for a
savepoint and the end. The process loads the author's code once, so each change of that code needs a
new process.
"""

import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

import msgspec

from pipelines.bus.journal import newest_event
from pipelines.connectors.in_process import Collect
from pipelines.disk.files import replace_atomically
from pipelines.domain.errors import BrokenCode, Rejected
from pipelines.domain.events import (
    CheckpointCompleted,
    FailureOccurred,
    JobStatusChanged,
    RunEnded,
    RunStarted,
)
from pipelines.domain.ids import Uid
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from pipelines.flows.finding import find_flow
from pipelines.local.running import NAME, RunFailed, host, local_spec
from pipelines.local.slot import LocalStages, RealTime
from pipelines.local.view import (
    REFUSED,
    TASK_FILE,
    VIEW_FILE,
    CheckpointSeen,
    CollectSeen,
    Task,
    VertexSeen,
    View,
    authors_part,
)
from pipelines.stream import Pipeline

VIEW_PERIOD_MS = 500.0
ROWS_SHOWN = 20


class Watcher:
    """Implements `Onlooker`: writes the view during the run."""

    def __init__(self, place: Path, directory: RunDirectory, pipeline: Pipeline) -> None:
        self._place = place
        self._directory = directory
        self._pipeline = pipeline
        self._time = RealTime()
        self._due_ms = 0.0
        self._is_running = False
        self._is_to_stop = False
        self._stages: LocalStages | None = None  # None before the first turn

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: asks the run to stop."""
        del number, frame
        self._is_to_stop = True

    def on_turn(self, stages: LocalStages) -> bool:
        self._stages = stages
        if self._time.monotonic_ms() >= self._due_ms:
            view = self.view()
            self._is_running = view.status == JobStatus.RUNNING
            write(self._place, view)
            self._due_ms = self._time.monotonic_ms() + VIEW_PERIOD_MS
        return self._is_to_stop and self._is_running

    def view(self) -> View:
        journal = self._directory.journal_file
        started = newest_event(journal, RunStarted)
        status = newest_event(journal, JobStatusChanged)
        completed = newest_event(journal, CheckpointCompleted)
        passed = {} if self._stages is None else self._stages.statistics()
        return View(
            status=JobStatus.CREATED if status is None else status.status,
            run_id=self._directory.run_id,
            restored_from=None if started is None else started.restored_from,
            vertices=[
                VertexSeen(
                    uid=each.uid,
                    operators=list(each.operators),
                    inputs=list(each.inputs),
                    records_in=passed.get((each.uid, "in"), 0),
                    records_out=passed.get((each.uid, "out"), 0),
                )
                for each in (() if started is None else started.vertices)
            ],
            checkpoint=None if completed is None else _seen(completed),
            collects=[
                _collected(uid, sink, self._pipeline)
                for uid, sink in self._pipeline.sinks.items()
                if isinstance(sink, Collect)
            ],
        )


def run(task: Task, place: Path) -> bool:
    """Returns True if all went well; otherwise the view has the problem."""
    write(place, View(restored_from=task.restore_from))
    try:
        pipeline = find_flow(task.reference).build(task.parameters)
        view = _hosted(task, place, pipeline)
    except Rejected as refusal:
        below = refusal.traceback if isinstance(refusal, BrokenCode) else ""
        write(place, _refused(task, str(refusal), below))
        return False
    except Exception as error:  # of any type: the author of the code reads it in the view
        write(place, _refused(task, f"{type(error).__name__}: {error}", traceback.format_exc()))
        raise
    write(place, view)
    return not view.problem


def _hosted(task: Task, place: Path, pipeline: Pipeline) -> View:
    root = Path(task.root)
    spec = local_spec(root, task.parallelism, task.settings, task.restore_from)
    spec = msgspec.structs.replace(spec, allow_non_restored_state=task.allow_non_restored_state)
    directory = RunDirectory.of(root, NAME, spec.run_id)
    watcher = Watcher(place, directory, pipeline)
    signal.signal(signal.SIGTERM, watcher.ask_to_stop)
    try:
        result = host(root, spec, pipeline, RealTime(), onlooker=watcher)
    except RunFailed:
        return _failed(watcher.view(), directory)
    return msgspec.structs.replace(watcher.view(), savepoint=result.savepoint)


def _failed(view: View, directory: RunDirectory) -> View:
    ended = newest_event(directory.journal_file, RunEnded)
    failure = newest_event(directory.journal_file, FailureOccurred)
    return msgspec.structs.replace(
        view,
        problem="The run failed." if ended is None else ended.reason,
        traceback="" if failure is None else authors_part(failure.detail),
    )


def _refused(task: Task, problem: str, below: str) -> View:
    return View(
        status=REFUSED, restored_from=task.restore_from, problem=problem, traceback=below.rstrip()
    )


def _seen(completed: CheckpointCompleted) -> CheckpointSeen:
    return CheckpointSeen(
        id=completed.checkpoint_id,
        path=completed.path,
        end_to_end_ms=completed.end_to_end_ms,
        state_bytes=completed.state_bytes,
    )


def _collected(uid: Uid, sink: Collect, pipeline: Pipeline) -> CollectSeen:
    schema = pipeline.schemas[uid]
    newest = sink.newest(schema, ROWS_SHOWN).to_pylist()
    return CollectSeen(
        uid=uid,
        row_count=sink.row_count,
        columns=list(schema.names),
        rows=[[str(value) for value in row.values()] for row in newest],
    )


def write(place: Path, view: View) -> None:
    replace_atomically(place, msgspec.json.encode(view))


if __name__ == "__main__":
    here = Path(sys.argv[1])
    given = msgspec.json.decode((here / TASK_FILE).read_bytes(), type=Task)
    sys.exit(0 if run(given, here / VIEW_FILE) else 1)
