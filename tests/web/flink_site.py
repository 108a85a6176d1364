"""A dashboard for Flink's own tools, over runs that answer every request.

    FTDASH_HOME=DIR python -m tests.web.flink_site PORT

Server, database, projector and API are real; the driver is not. It takes a checkpoint or savepoint
whenever a request asks for one, and for `flights` a checkpoint every second. Prints `ready` and a
token; the password of `admin` is its name.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")
django.setup()

from django.conf import settings as project  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.utils import timezone  # noqa: E402

from ftdash.accounts.models import TokenScope  # noqa: E402
from ftdash.accounts.services import create_token  # noqa: E402
from ftdash.jobs.models import OPEN_PHASES, Pipeline, Request  # noqa: E402
from ftdash.metrics.models import Heartbeat, HeartbeatName  # noqa: E402
from ftdash.points.services import disposal  # noqa: E402
from ftdash.projection.projector import Projector  # noqa: E402
from pipelines.domain.checkpoint_failures import CheckpointFailureReason  # noqa: E402
from pipelines.domain.commands import (  # noqa: E402
    CancelWithSavepoint,
    RequestKind,
    StopWithSavepoint,
    TakeSavepoint,
)
from pipelines.domain.events import (  # noqa: E402
    CheckpointFailed,
    FailureOccurred,
    RequestAccepted,
    RequestEnded,
    SlotConnected,
)
from pipelines.domain.ids import CheckpointId, RequestId, Uid  # noqa: E402
from pipelines.domain.status import CheckpointKind, JobStatus, RequestOutcome  # noqa: E402
from pipelines.storage.filesystem import FileSystemCheckpointStore  # noqa: E402
from tests.unit.points.stored_views import publish_views, write_events  # noqa: E402
from tests.web.journals import Story, StoryClock, new_run  # noqa: E402
from tests.web.simulated_site import people  # noqa: E402

ROUND_S = 0.1
ROUNDS_BETWEEN_CHECKPOINTS = 10
SAVEPOINTS = (
    TakeSavepoint.kind,
    StopWithSavepoint.kind,
    CancelWithSavepoint.kind,
)


ENDLESS = "flights", "full-disk", "to-stop", "to-drain", "to-cancel", "to-save"
"""A test that ends a pipeline has its own pipeline."""


class FlinkSite:
    """Pipelines that are alike, except three.

    In `full-disk` savepoints fail, `eventful` has seen failures and savepoints, and `ended` was
    cancelled.
    """

    def __init__(self) -> None:
        self.home = Path(project.JOBS_ROOT)
        self.data = write_events(Path(project.FTDASH_HOME) / "events")
        self.projector = Projector()
        self.stories = [self.started(name) for name in ENDLESS]
        self.stories.append(eventful(self.started("eventful")))
        self.stories.append(self.started("ended").ended(JobStatus.CANCELED, "As asked."))

    def started(self, name: str) -> Story:
        run = new_run(name, settings={"execution.checkpointing.interval": "1 s"})
        Pipeline.objects.filter(name=name).update(flow="flight_delays")
        story = Story(run, StoryClock()).started().sampled().completed()
        story.tell(FailureOccurred(cause="It broke.", vertex=Uid("join"), subtask=1, slot=0))
        story.slot_killed().tell(SlotConnected(slot=0, pid=200, host="here"))
        return story.sampled()

    def round(self, number: int) -> None:
        for story in self.stories:
            story.clock.now_ms = max(time.time_ns() // 1_000_000, story.clock.now_ms)
            if number % ROUNDS_BETWEEN_CHECKPOINTS == 0 and not story.run.is_terminal:
                story.sampled()
                if story.run.pipeline.name == "flights":
                    story.completed()
            for request in Request.objects.filter(run=story.run, phase__in=OPEN_PHASES):
                self.answer(story, request)
        for request in Request.objects.filter(kind=RequestKind.DISPOSE, phase__in=OPEN_PHASES):
            disposal.dispose_of(request.pk)
        while self.projector.run_once():
            pass
        for story in self.stories:
            story.run.refresh_from_db()
        for name in HeartbeatName:
            seen = {"at": timezone.now(), "pid": os.getpid()}
            Heartbeat.objects.update_or_create(name=name, defaults=seen)

    def answer(self, story: Story, request: Request) -> None:
        request_id, path = RequestId(request.request_id), None
        story.tell(RequestAccepted(request_id=request_id))
        if story.run.pipeline.name == "full-disk" and request.kind != RequestKind.CANCEL:
            self.fail(story, request_id)
            return
        if request.kind in SAVEPOINTS:
            number = story.next_checkpoint
            place = self.home / "flights" / "savepoints" / f"savepoint-{story.run.run_id}-{number}"
            publish_views(FileSystemCheckpointStore([str(self.home)]), str(place), self.data)
            path = str(place)
            story.completed(CheckpointKind.SAVEPOINT, request_id, path)
        elif request.kind == RequestKind.CHECKPOINT:
            story.completed(request_id=request_id)
        done = RequestOutcome.SUCCEEDED
        story.tell(RequestEnded(request_id=request_id, outcome=done, message="Done.", path=path))
        if request.kind == RequestKind.STOP_WITH_SAVEPOINT:
            story.ended()
        elif request.kind in (RequestKind.CANCEL, RequestKind.CANCEL_WITH_SAVEPOINT):
            story.ended(JobStatus.CANCELED, "As asked.")

    def fail(self, story: Story, request_id: RequestId) -> None:
        number, message = story.next_checkpoint, "No space is left on the device."
        reason = CheckpointFailureReason.IO_EXCEPTION
        story.triggered(CheckpointKind.SAVEPOINT, request_id).tell(
            CheckpointFailed(checkpoint_id=number, reason=reason, message=message),
            RequestEnded(request_id=request_id, outcome=RequestOutcome.FAILED, message=message),
        )
        story.next_checkpoint = CheckpointId(number + 1)


def eventful(story: Story) -> Story:
    """Makes checkpoint 2 a savepoint, lets 3 expire, and completes 4, the newest."""
    story.completed(CheckpointKind.SAVEPOINT, path="/jobs/eventful/savepoints/savepoint-2")
    number, reason = story.next_checkpoint, CheckpointFailureReason.CHECKPOINT_EXPIRED
    story.triggered().acknowledged("join", 1).wait(900)
    story.tell(CheckpointFailed(checkpoint_id=number, reason=reason, message="One of 8."))
    story.next_checkpoint = CheckpointId(number + 1)
    return story.completed()


def main() -> None:
    port = sys.argv[1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the server ends with it
    call_command("migrate", verbosity=0)
    if not Path(project.STATIC_ROOT).exists():
        call_command("collectstatic", verbosity=0, interactive=False)
    people()
    token = create_token(name="flink", scope=TokenScope.ACT, created_by="ada", reason="x").secret
    site = FlinkSite()
    site.round(0)
    command = ["uvicorn", "ftdash.asgi:application", "--port", port, "--log-level", "warning"]
    server = subprocess.Popen([sys.executable, "-m", *command])
    print(f"ready {token}", flush=True)
    number = 0
    try:
        while server.poll() is None:
            number += 1
            site.round(number)
            time.sleep(ROUND_S)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
