"""Worker, beat, projector, web server and Redis are killed under a running job: it does not notice.

What the control plane does is told again from the journal once it is back.
"""

import signal
from pathlib import Path

import psutil
import pytest
import redis

from ftdash.embedded.accounts import Account
from ftdash.embedded.dashboard_client import DashboardClient
from ftdash.embedded.ledger import living
from ftdash.embedded.opening import LEDGER_NAME
from ftdash.embedded.supervisor import wait_until
from pipelines.bus.journal_reading import read_journal
from pipelines.domain.events import CheckpointCompleted, Envelope, FailureOccurred
from tests.integration.demonstration import Demo

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PARTS = {
    "worker": "worker",
    "beat": "beat",
    "projector": "projector",
    "web": "ftdash.asgi:application",
    "redis": "-server",
}
"""What the command line of each process says."""
WITHIN_S = 120.0


@pytest.mark.timeout(600)
def test_a_job_runs_on_while_each_process_of_the_control_plane_is_killed(home: Path) -> None:
    demo = Demo(home, ignored=signal.SIGUSR1)
    demo.wait_said(r"End with +Ctrl-C")
    assert_goes_on(home)

    for part in PARTS:
        killed = part_of(home, part)
        killed.kill()
        wait_until(
            lambda part=part, pid=killed.pid: is_back(home, part, pid),
            within_s=WITHIN_S,
            otherwise=lambda part=part: f"{part} did not come back",
        )
        assert_goes_on(home)
    redis.Redis.from_url(redis_url(home)).flushall()
    assert_goes_on(home)

    with DashboardClient(demo.said(r"Dashboard +(\S+)")) as dashboard:
        dashboard.sign_in(Account("admin", demo.said(r"admin +password (\S+)")))
        stop = dashboard.act("flight_delays", "savepoint", "after all those kills")
    assert stop
    assert_goes_on(home)
    assert [e for e in journal(home) if isinstance(e.event, FailureOccurred)] == []
    assert {e.attempt for e in journal(home)} <= {0, 1}
    demo.process.terminate()
    assert demo.process.wait(timeout=60) == 0


def part_of(home: Path, part: str) -> psutil.Process:
    """The oldest one: pools of workers are its children."""
    found = [p for p in living(home / LEDGER_NAME) if PARTS[part] in " ".join(command(p))]
    return min(found, key=lambda process: process.create_time())


def is_back(home: Path, part: str, killed_pid: int) -> bool:
    try:
        return part_of(home, part).pid != killed_pid
    except ValueError:
        return False


def command(process: psutil.Process) -> list[str]:
    try:
        return [process.name(), *process.cmdline()]
    except psutil.NoSuchProcess:
        return []


def journal(home: Path) -> list[Envelope]:
    envelopes: list[Envelope] = []
    for path in home.rglob("journal.jsonl"):
        offset = 0
        while (part := read_journal(path, offset))[0]:
            envelopes += part[0]
            offset = part[1]
    return envelopes


def assert_goes_on(home: Path) -> None:
    seen = completed(home)
    wait_until(
        lambda: completed(home) >= seen + 2,
        within_s=WITHIN_S,
        otherwise=lambda: "no checkpoint completes any more",
    )


def completed(home: Path) -> int:
    return sum(isinstance(envelope.event, CheckpointCompleted) for envelope in journal(home))


def redis_url(home: Path) -> str:
    (path,) = home.rglob("redis.conf")
    words = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    return f"redis://:{words['requirepass']}@127.0.0.1:{words['port']}/0"
