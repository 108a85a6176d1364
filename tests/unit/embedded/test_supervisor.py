"""Starting, reviving and ending processes, with real ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ftdash.embedded import supervisor as ledgers
from ftdash.embedded.supervisor import (
    MARK_VARIABLE,
    RESTARTS_MAX,
    Ledger,
    Service,
    Supervisor,
    last_words,
    wait_until,
)
from pipelines.domain.errors import Rejected

pytestmark = pytest.mark.slow

SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time, pathlib, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
)
ORPHAN_MAKER = (  # its child runs in a session of its own, as a driver does
    "import subprocess, sys, time, pathlib;"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[2]], start_new_session=True);"
    "pathlib.Path(sys.argv[1] + '.new').write_text(str(child.pid));"
    "pathlib.Path(sys.argv[1] + '.new').rename(sys.argv[1]); time.sleep(600)"
)
WITNESS = (  # when it is asked to end, it says whether the process named in a file still lives
    "import psutil, pathlib, signal, sys, time;"
    "pid = lambda: int(pathlib.Path(sys.argv[1]).read_text());"
    "lives = lambda: psutil.pid_exists(pid()) and psutil.Process(pid()).status() != 'zombie';"
    "say = lambda *_: sys.exit(pathlib.Path(sys.argv[2]).write_text(str(lives())) and 0);"
    "signal.signal(signal.SIGTERM, say);"
    "pathlib.Path(sys.argv[2]).touch(); time.sleep(600)"
)
OWNER = """
import sys, time
from pathlib import Path
import django
django.setup()
from ftdash.embedded.supervisor import Ledger
from ftdash.embedded.supervisor import Service, Supervisor
home = Path(sys.argv[1])
orphan = home / "orphan"
supervisor = Supervisor(Ledger(home / "ledger", sys.argv[2]), home, print)
supervisor.start(Service(
    name="maker",
    command=(sys.executable, "-c", sys.argv[3], str(orphan), sys.argv[4]),
    is_ready=orphan.exists,
    ready_within_s=60,
))
(home / "owner-is-ready").touch()
if sys.stdin.readline():
    supervisor.stop()
    print("ended in order", flush=True)
"""


def test_leaving_the_supervisor_ends_children_and_their_descendants(home: Path, ledger) -> None:
    with Supervisor(ledger, home, print) as supervisor:
        supervisor.start(orphan_maker(home))
        orphan = psutil.Process(int((home / "orphan").read_text()))
        assert orphan.is_running()

    assert not is_alive(orphan)
    assert ledgers.living(ledger.path) == []


def test_a_service_that_others_need_is_ended_last(home: Path, ledger) -> None:
    said = home / "said"
    witness = Service(
        name="redis",
        command=(sys.executable, "-c", WITNESS, str(home / "orphan"), str(said)),
        is_ready=said.exists,
        ready_within_s=60,
        ends_last=True,
    )

    with Supervisor(ledger, home, print) as supervisor:
        supervisor.start(witness)
        supervisor.start(orphan_maker(home))

    assert said.read_text() == "False"


def test_a_process_that_ignores_the_request_to_end_is_killed(home: Path, ledger) -> None:
    touched = home / "touched"
    with Supervisor(ledger, home, print) as supervisor:
        supervisor.start(service("stubborn", STUBBORN, str(touched), is_ready=touched.exists))
        stubborn = psutil.Process(supervisor.pid_of("stubborn"))
        ledgers.end([stubborn], grace_s=0.1)

        assert not is_alive(stubborn)


def test_killing_the_owner_ends_all_its_processes(home: Path, mark: str) -> None:
    owner = start_owner(home, mark)
    wait_until((home / "owner-is-ready").exists, within_s=60, otherwise=lambda: "no owner")
    assert len(ledgers.living(home / "ledger")) >= 3  # maker, orphan, and the guardian

    owner.send_signal(signal.SIGKILL)
    owner.wait()

    wait_until(
        lambda: ledgers.living(home / "ledger") == [],
        within_s=60,
        otherwise=lambda: f"left over: {ledgers.living(home / 'ledger')}",
    )


def test_an_orderly_shutdown_is_not_cut_short_by_the_guardian(home: Path, mark: str) -> None:
    owner = start_owner(home, mark)
    wait_until((home / "owner-is-ready").exists, within_s=60, otherwise=lambda: "no owner")

    said, _ = owner.communicate(b"end\n", timeout=60)

    assert said.endswith(b"ended in order\n")
    assert owner.returncode == 0
    assert ledgers.living(home / "ledger") == []


def test_the_next_start_ends_what_a_killed_owner_and_guardian_left(home: Path, mark: str) -> None:
    owner = start_owner(home, mark)
    wait_until((home / "owner-is-ready").exists, within_s=60, otherwise=lambda: "no owner")
    orphan = psutil.Process(int((home / "orphan").read_text()))
    for process in [*psutil.Process(owner.pid).children(), psutil.Process(owner.pid)]:
        process.kill()
    owner.wait()
    assert is_alive(orphan)

    Ledger(home / "ledger", ledgers.new_mark()).close()

    assert not is_alive(orphan)


def test_a_second_owner_of_the_same_home_is_refused(home: Path, ledger) -> None:
    with pytest.raises(Rejected, match=rf"in use by process {os.getpid()}; .* with --home"):
        Ledger(ledger.path, ledgers.new_mark())


def test_a_child_that_dies_is_started_again(home: Path, ledger) -> None:
    reports: list[str] = []
    with Supervisor(ledger, home, reports.append) as supervisor:
        supervisor.start(service("web", SLEEPER))
        first = supervisor.pid_of("web")
        kill_and_wait(first)

        supervisor.revive()

        assert supervisor.pid_of("web") != first
        assert is_alive(psutil.Process(supervisor.pid_of("web")))
        assert reports[-1] == "web died with exit status -9; started again."


def test_a_child_that_dies_too_often_is_given_up_in_its_own_words(home: Path, ledger) -> None:
    def has_spoken() -> bool:
        return "no port" in (home / "web.log").read_text()

    with Supervisor(ledger, home, print) as supervisor:
        code = f"print('no port', flush=True); {SLEEPER}"
        supervisor.start(service("web", code, is_ready=has_spoken))
        for _ in range(RESTARTS_MAX):
            kill_and_wait(supervisor.pid_of("web"))
            supervisor.revive()
        kill_and_wait(supervisor.pid_of("web"))

        dies = rf"(?s)^web died {RESTARTS_MAX} times within 60 s, .* exit status -9\..*\nno port"
        with pytest.raises(Rejected, match=dies):
            supervisor.revive()


def test_a_child_that_ends_while_it_starts_is_reported_with_its_log(home: Path, ledger) -> None:
    dying = service("web", "print('port 80 is taken'); exit(3)", is_ready=lambda: False)
    with Supervisor(ledger, home, print) as supervisor, pytest.raises(Rejected) as refusal:
        supervisor.start(dying)

    assert "web ended with exit status 3 while it started." in str(refusal.value)
    assert "port 80 is taken" in str(refusal.value)


def test_a_child_that_never_gets_ready_is_reported_within_its_bound(home: Path, ledger) -> None:
    slow = Service(
        name="web",
        command=(sys.executable, "-c", SLEEPER),
        is_ready=lambda: False,
        ready_within_s=0.3,
    )

    with Supervisor(ledger, home, print) as supervisor, pytest.raises(Rejected, match="not ready"):
        supervisor.start(slow)


def test_a_guardian_that_dies_is_replaced(home: Path, ledger) -> None:
    others = psutil.Process().children()
    with Supervisor(ledger, home, print) as supervisor:
        [guardian] = set(psutil.Process().children()) - set(others)
        guardian.kill()
        guardian.wait()

        supervisor.revive()

        [replaced] = set(psutil.Process().children()) - set(others)
        assert replaced.pid != guardian.pid


def test_a_torn_last_line_of_a_ledger_is_ignored(home: Path, ledger) -> None:
    ledger.record(os.getpid())
    with ledger.path.open("ab") as file:
        file.write(b'{"pid": 12')

    _, started = ledgers.read(ledger.path)

    assert [each.pid for each in started] == [os.getpid()]


def test_last_words_are_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("\n".join(f"line {n}" for n in range(100)))

    assert last_words(log).endswith("line 98\nline 99")
    assert "line 80" not in last_words(log)
    assert last_words(tmp_path / "none.log") == f"It wrote no {tmp_path / 'none.log'}."


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def mark(monkeypatch) -> str:
    mark = ledgers.new_mark()
    monkeypatch.setenv(MARK_VARIABLE, mark)
    return mark


@pytest.fixture
def ledger(home: Path, mark: str) -> Iterator[Ledger]:
    ledger = Ledger(home / "ledger", mark)
    yield ledger
    ledgers.end_all(ledger.path)
    ledger.close()


def service(name: str, program: str, *arguments: str, is_ready=lambda: True) -> Service:
    return Service(
        name=name,
        command=(sys.executable, "-c", program, *arguments),
        is_ready=is_ready,
        ready_within_s=60,
    )


def orphan_maker(home: Path) -> Service:
    orphan = home / "orphan"
    return service("maker", ORPHAN_MAKER, str(orphan), SLEEPER, is_ready=orphan.exists)


def start_owner(home: Path, mark: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", OWNER, str(home), mark, ORPHAN_MAKER, SLEEPER]
    return subprocess.Popen(
        command,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "ftdash.settings"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def kill_and_wait(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    wait_until(lambda: not is_alive(process), within_s=60, otherwise=lambda: "still alive")


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
