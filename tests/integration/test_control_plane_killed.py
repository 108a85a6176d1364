"""Worker, beat, projector, web server and Redis are killed while a job runs, which does not notice.

Once the control plane is back, it learns from the journal what happened meanwhile.
"""

import signal
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from ftdash.embedded.check import DashboardClient
from ftdash.embedded.demo import Account
from ftdash.embedded.stack import web_answers
from ftdash.embedded.supervisor import LEDGER_NAME, living
from pipelines.bus.journal import every_envelope
from pipelines.domain.events import (
    CheckpointCompleted,
    Envelope,
    FailureOccurred,
    RequestEnded,
)
from pipelines.domain.status import RequestOutcome
from tests.integration.demonstration import Demo
from tests.new_home import new_home, without_documentation
from tests.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PARTS = {
    "worker": "worker",
    "beat": "beat",
    "projector": "projector",
    "web": "ftdash.asgi:application",
    "redis": "-server",
}
"""A text that the command line of each process contains."""
WITHIN_S = 120.0


@pytest.mark.timeout(600)
def test_a_job_keeps_running_while_each_control_plane_process_is_killed(home: Path) -> None:
    without_documentation(new_home(home))
    with Demo(home, ignored=signal.SIGUSR1) as demo:
        demo.wait_said(r"End with +Ctrl-C")
        assert_goes_on(home)

        for part in PARTS:
            killed = part_of(home, part)
            killed.kill()
            assert_goes_on(home)
            wait_for_another(home, part, killed.pid)
        redis.Redis.from_url(redis_url(home)).flushall()
        assert_goes_on(home)

        address = demo.said(r"Dashboard +(\S+)")
        wait_until(
            lambda: web_answers(int(urlsplit(address).port or 0)),
            within_s=WITHIN_S,
            otherwise=lambda: "the web server that came back does not answer",
        )
        with DashboardClient(address) as dashboard:
            dashboard.sign_in(Account("admin", demo.said(r"admin +password (\S+)")))
            asked = dashboard.act("flight_delays", "savepoint", "after all those kills")
        wait_until(
            lambda: outcome_of(home, asked) is not None,
            within_s=WITHIN_S,
            otherwise=lambda: "the savepoint was not answered",
        )
        assert_goes_on(home)
        demo.process.terminate()
        status = demo.process.wait(timeout=60)

    assert outcome_of(home, asked) is RequestOutcome.SUCCEEDED
    assert [e for e in journal(home) if isinstance(e.event, FailureOccurred)] == []
    assert {e.attempt for e in journal(home)} <= {0, 1}
    assert status == 0


def wait_for_another(home: Path, part: str, killed_pid: int) -> None:
    wait_until(
        lambda: is_back(home, part, killed_pid),
        within_s=WITHIN_S,
        otherwise=lambda: f"{part} did not come back",
    )


def outcome_of(home: Path, asked: str) -> RequestOutcome | None:
    events = (envelope.event for envelope in journal(home))
    ended = [e for e in events if isinstance(e, RequestEnded) and e.request_id == asked]
    return ended[0].outcome if ended else None


def part_of(home: Path, part: str) -> psutil.Process:
    """Returns the oldest matching process, because workers of a pool are its children."""
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
    """Returns the events of all runs, and none before the first run."""
    paths = (home / "jobs").glob("*/runs/*/journal.jsonl")
    return [each for path in paths for each in every_envelope(path)]


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
