"""Tests run side by side, but a test that must be alone runs without others."""

import contextlib
import fcntl
import queue
import threading
from collections import OrderedDict
from pathlib import Path
from typing import cast

from tenacity import Retrying, stop_after_delay, wait_fixed
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from tests.conftest import BesideProcesses
from tests.shared_machine import QUEUE, SharedMachine

PATIENCE_S = 20.0


class User:
    """Uses the machine on a thread of its own until the test calls `leave`."""

    def __init__(
        self, machine: SharedMachine, told: "queue.Queue[str]", name: str, *, alone: bool
    ) -> None:
        self._machine, self._told, self._name = machine, told, name
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._use, args=[alone], daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(PATIENCE_S)

    def _use(self, alone: bool) -> None:
        with self._machine.used(alone=alone):
            self._told.put(f"{self._name} is there")
            self._leave.wait(PATIENCE_S)
            self._told.put(f"{self._name} leaves")


def test_shared_tests_run_at_the_same_time(tmp_path: Path) -> None:
    told: queue.Queue[str] = queue.Queue()
    users = [User(SharedMachine(tmp_path), told, name, alone=False) for name in ("a", "b")]

    assert {told.get(timeout=PATIENCE_S) for _ in users} == {"a is there", "b is there"}
    for user in users:
        user.leave()


def test_an_exclusive_test_waits_for_earlier_tests_and_precedes_later_ones(tmp_path: Path) -> None:
    told: queue.Queue[str] = queue.Queue()
    machine = SharedMachine(tmp_path)
    first = User(machine, told, "first", alone=False)
    assert told.get(timeout=PATIENCE_S) == "first is there"
    alone = User(machine, told, "alone", alone=True)
    wait_until_somebody_queues(tmp_path)
    later = User(machine, told, "later", alone=False)

    for user in (first, alone, later):
        user.leave()

    seen = [told.get(timeout=PATIENCE_S) for _ in range(5)]
    assert seen[:3] == ["first leaves", "alone is there", "alone leaves"]


def wait_until_somebody_queues(directory: Path) -> None:
    patience = Retrying(stop=stop_after_delay(PATIENCE_S), wait=wait_fixed(0.005))
    patience.wraps(refuse_an_empty_queue)(directory / QUEUE)


def refuse_an_empty_queue(lock: Path) -> None:
    with lock.open("a") as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise RuntimeError("nobody waits")


class Process:
    """A process of the suite, which is asked to run tests by their places in the collection."""

    shutting_down = False

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.asked.append(places)


def test_after_a_crash_another_process_runs_only_what_remains() -> None:
    ended, idle = Process(), Process()
    one, two, three, four = [
        *(f"tests/unit/test_done.py::{name}" for name in ("one", "two")),
        *(f"tests/unit/test_crashing.py::{name}" for name in ("three", "four")),
    ]
    done, crashing = one.partition("::")[0], three.partition("::")[0]
    scheduling = object.__new__(BesideProcesses)
    scheduling.log = Producer("scheduling", enabled=False)
    scheduling.assigned_work = {
        ended: {done: {one: True, two: True}, crashing: {three: False, four: False}},
        idle: {},
    }
    scheduling.registered_collections = {idle: [one, two, three, four]}
    scheduling.workqueue = OrderedDict()

    assert scheduling.remove_node(cast("WorkerController", ended)) == three

    assert idle.asked == [[3]]
    assert scheduling.workqueue == {}
