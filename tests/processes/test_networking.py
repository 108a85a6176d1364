"""Real drivers and slots at other addresses than the first loopback one, and encrypted."""

import os
import signal
import time
from pathlib import Path

import pytest

from pipelines.domain.events import MetricsSampled, SlotConnected
from pipelines.domain.status import JobStatus
from tests.certificates import Authority
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
ESTABLISHED = "01"  # in /proc/net/tcp
PACED = {"pause_ms": "150"}  # 5 s; no test waits for the end
SOONER = {"execution.checkpointing.interval": "50 ms"}
DRIVER, SLOTS = "127.0.0.2", "127.0.0.3"
ENABLED = {"security.ssl.internal.enabled": "true"}


def test_a_killed_slot_changes_nothing_with_tls_everywhere(tmp_path: Path) -> None:
    files = Authority(tmp_path / "tls").issued()
    settings = {
        **SOONER,
        **ENABLED,
        "security.ssl.internal.certificate-file": files.certificate,
        "security.ssl.internal.key-file": files.key,
        "security.ssl.internal.ca-file": files.authority,
    }
    with hosted_run(tmp_path, PACED, settings=settings) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(connected(run)[-1].pid, signal.SIGKILL)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def test_each_machine_may_name_its_own_tls_files(tmp_path: Path) -> None:
    files = Authority(tmp_path / "tls").issued()
    machine = {
        "FTDASH_TLS_CERTIFICATE_FILE": files.certificate,
        "FTDASH_TLS_KEY_FILE": files.key,
        "FTDASH_TLS_CA_FILE": files.authority,
    }
    with hosted_run(tmp_path, settings={**SOONER, **ENABLED}, environment=machine) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def test_the_driver_and_the_slots_use_the_addresses_in_the_settings(tmp_path: Path) -> None:
    settings = {**SOONER, "jobmanager.rpc.address": DRIVER, "taskmanager.host": SLOTS}
    with hosted_run(tmp_path, settings=settings) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert {event.host for event in connected(run)} == {SLOTS}
    assert_exact(tmp_path / "output")


def test_the_machines_own_slot_address_overrides_the_settings(tmp_path: Path) -> None:
    settings = {**SOONER, "taskmanager.host": "192.0.2.1", "taskmanager.bind-host": "0.0.0.0"}
    machine = {"FTDASH_TASKMANAGER_HOST": SLOTS}
    with hosted_run(tmp_path, settings=settings, environment=machine) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert {event.host for event in connected(run)} == {SLOTS}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (ENABLED, "there is no certificate: set security.ssl.internal.certificate-file, or"),
        (
            {**ENABLED, "security.ssl.internal.certificate-file": "/nowhere/c.pem"},
            "there is no key: set security.ssl.internal.key-file, or FTDASH_TLS_KEY_FILE",
        ),
        (
            {"jobmanager.rpc.address": "192.0.2.1"},  # no machine has this address
            "The driver cannot listen on 192.0.2.1, port any",
        ),
    ],
)
def test_network_settings_that_cannot_work_end_the_run_with_a_sentence(
    tmp_path: Path, settings: dict[str, str], sentence: str
) -> None:
    with hosted_run(tmp_path, settings=settings) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert sentence in ended.reason


def test_both_ends_count_the_same_bytes_once_all_records_are_read(tmp_path: Path) -> None:
    """Counts bytes within a slot and between two; while nothing is read, none are under way."""

    def is_even(_: object) -> bool:
        *_, newest = [None, *(envelope.event for envelope in run.of(MetricsSampled))]
        samples = newest.subtasks if isinstance(newest, MetricsSampled) else []
        read = sum(each.bytes_in or 0 for each in samples)
        sent = {each.bytes_out or 0 for each in samples if each.vertex == "numbers"}
        return read > 0 and len(sent) == 2 and sum(sent) == read

    with hosted_run(tmp_path, {"pause_ms": "1"}) as run:  # three quarters are read, then nothing
        run.wait_for(is_even, STEP_S)


def connected(run: StartedRun) -> list[SlotConnected]:
    events = [envelope.event for envelope in run.of(SlotConnected)]
    return [event for event in events if isinstance(event, SlotConnected)]


def test_both_ends_of_every_connection_of_a_run_use_tcp_keepalive(
    tmp_path: Path,
) -> None:
    """Each of two slots has a control connection; a data connection runs in each direction."""
    with hosted_run(tmp_path, {"pause_ms": "1000"}) as run:
        run.wait_for(lambda _: len(run.of(MetricsSampled)) > 0, STEP_S)
        pids = [run.process.pid, *(event.pid for event in connected(run))]
        deadline = time.monotonic() + STEP_S
        while (watched := [ends_of(pid) for pid in pids]) != [[True] * 2, *[[True] * 3] * 2]:
            assert time.monotonic() < deadline, f"not all are: {watched}"
            time.sleep(0.05)


def ends_of(pid: int) -> list[bool]:
    """Returns, for each TCP connection of a process, True if the kernel's keepalive timer runs."""
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    own = {link.removeprefix("socket:[").removesuffix("]") for link in links if "socket" in link}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[5].startswith("02:") for row in rows if row[9] in own and row[3] == ESTABLISHED]
