"""What a job master runs on: an executor for its slow work, and a door where slots dial in.

A driver has threads and a socket, the simulator a scheduler with a seed. That is why both are
passed to the master.
"""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from pipelines.domain.clock import Clock
from pipelines.domain.ids import Attempt
from pipelines.domain.settings import Settings
from pipelines.runtime.master.control_loop import ControlLoop
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.master.slots.control_server import ControlServer
from pipelines.runtime.networking import SlotAddress, driver_networking, load_tls

EXECUTOR_THREADS = 2


class ControlDoor(Protocol):
    """Lets slots in, and posts their messages to the master."""

    def open_for(self, attempt: Attempt) -> SlotAddress:
        """From now on only slots of this attempt are let in."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MasterHosting:
    """`executor` writes and deletes the files of points; `open_control` takes `post`."""

    executor: Executor
    open_control: Callable[[Callable[[JobEvent], None]], ControlDoor]


def threaded_hosting(
    settings: Settings, parallelism: int, loop: ControlLoop, clock: Clock
) -> MasterHosting:
    """Raises Rejected when the driver cannot listen where the settings say."""
    networking = driver_networking(settings)
    tls = load_tls(networking.slots)
    return MasterHosting(
        ThreadPoolExecutor(EXECUTOR_THREADS, thread_name_prefix="storage"),
        lambda post: ControlServer(
            networking, tls, post, settings.heartbeat, parallelism, loop, clock.monotonic_ms
        ),
    )
