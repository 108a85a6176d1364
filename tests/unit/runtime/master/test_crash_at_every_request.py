"""A driver on an object store that dies at any request of its life, and its successor.

A driver finds and reads the newest point, sweeps its predecessor's leftovers, writes a checkpoint
and publishes it. Then it deletes the checkpoint that this one subsumes and the shared files that no
point needs any more. The server is a real one. A request that only reads leaves nothing behind, so
a driver dies before or after the k-th request that changes something, for each k. The outcome of
that request is unknown, and no later request arrives. `test_crash_at_every_step` does the same on
files.
"""

import itertools
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pipelines.domain.errors import Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.run import SnapshotPlaces
from pipelines.storage.object_store import ObjectCheckpointStore, ObjectStoreLimits
from tests.contracts.stored_points import named_environment
from tests.object_server import BUCKET, Fault, ObjectServer, Request, never
from tests.unit.runtime.master.points_driver import Driver

pytestmark = pytest.mark.slow

RUN = RunId("run-1")
REQUESTS_MAX = 40
CHANGING = ("PUT", "POST", "DELETE")
NO_SECOND_TRY = ObjectStoreLimits(retries=0, first_backoff_ms=1, max_backoff_ms=1)


@pytest.fixture
def server(objects: ObjectServer) -> Iterator[ObjectServer]:
    objects.plan(never)
    with named_environment(objects.environment):
        yield objects
    objects.plan(never)


@pytest.mark.parametrize(
    "last", [Fault.CUT_UPLOAD, Fault.LOST_ANSWER], ids=["before a request", "after a request"]
)
def test_a_death_at_any_request_leaves_the_newest_point_and_no_litter(
    server: ObjectServer, last: Fault
) -> None:
    run = Run(server)
    run.driver().take(run.next_id())
    found = set[str]()

    for number in range(1, REQUESTS_MAX):
        run.driver().leave_unfinished(run.next_id())
        before, doomed = run.newest_id, run.next_id()
        death = Death(number, last)
        server.plan(death.plan)
        with suppress(Retryable):
            live(run.driver(), doomed)
        server.plan(never)

        successor = run.driver()
        chosen = successor.chosen()
        is_complete = f"chk-{doomed}/manifest.json" in death.put
        assert chosen.checkpoint_id == (doomed if is_complete else before)
        assert chosen.checkpoint_id in successor.restored(chosen)
        found.add("the new one" if is_complete else "the one before")
        run.newest_id = run.next_id()
        successor.sweep(run.newest_id)
        successor.take(run.newest_id)
        assert run.stored() == successor.expected()
        if not death.has_come:
            assert number > len(("two files", "the manifest", "what is subsumed", "shared files"))
            assert found == {"the new one", "the one before"}
            return
    pytest.fail("a life takes a bounded number of requests")


def live(driver: Driver, checkpoint_id: CheckpointId) -> None:
    """Raises Retryable, unless only a deletion fails, which a real driver survives too."""
    driver.restored(driver.chosen())
    driver.sweep(checkpoint_id)
    driver.take(checkpoint_id)


class Death:
    """Kills a process: its last request is carried out or not, and no later one is sent."""

    def __init__(self, number: int, last: Fault) -> None:
        """`number` counts the requests that change something, up to the last one."""
        self._number = number
        self._last = last
        self._changes = 0
        self.has_come = False
        self.put: set[str] = set()  # names below the checkpoints of the run

    def plan(self, request: Request) -> Fault | None:
        if self.has_come:
            return Fault.CUT_UPLOAD
        self._changes += request.method in CHANGING
        self.has_come = self._changes == self._number
        fault = self._last if self.has_come else None
        if request.method == "PUT" and fault is not Fault.CUT_UPLOAD:
            self.put.add(request.path.partition(f"{RUN}/")[2])
        return fault


class Run:
    """A run's place in the store, and the ids that it has used."""

    def __init__(self, server: ObjectServer) -> None:
        self._server = server
        self._root = server.new_root()
        self._ids, self._attempts = itertools.count(1), itertools.count(1)
        self.newest_id = CheckpointId(1)  # known to be complete

    def next_id(self) -> CheckpointId:
        return CheckpointId(next(self._ids))

    def driver(self) -> Driver:
        places = SnapshotPlaces(RUN, f"{self._root}/{RUN}", f"{self._root}/savepoints")
        store = ObjectCheckpointStore([self._root], NO_SECOND_TRY)
        return Driver(store, places, Attempt(next(self._attempts)))

    def stored(self) -> set[str]:
        """Returns the names that the server itself lists."""
        prefix = f"{self._root}/{RUN}/".removeprefix(f"s3://{BUCKET}/")
        _, listing = self._server.ask("GET", f"/{BUCKET}?list-type=2&prefix={prefix}")
        keys = re.findall(r"<Key>([^<]+)</Key>", listing.decode())
        return {key.removeprefix(prefix) for key in keys}
