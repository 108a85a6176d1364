"""The incidents of the drill: how each is staged, and what the fleet page has to show."""

import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from bench.drill.flow import AWAY, CLOCK, POISON, SKEWED, STUCK, UID
from bench.drill.staging import Staged
from ftdash.embedded.supervisor import wait_until
from tests.certificates import Authority

LIMIT_S = 10.0
AFTER_TIMEOUT_S = 5.0
CLICKS_MAX = 3
ANSWER_S = 60.0
CERTIFICATE_S = 75.0
ENTRIES = 400
LOST = ENTRIES - ENTRIES // 4  # when the incident trims the stream

Stage = Callable[[Staged], AbstractContextManager[float]]
"""Begins the incident and yields the moment (monotonic); cleans up at the end of the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """How an incident is staged, and what the fleet page has to show.

    One notice of the page has to match all of `said`, regular expressions that include the cause.
    `steps` are the buttons that a person presses from that notice on, the last one before a form,
    or words of the advice if the step is outside the page. Before `timeout_s`, the timeout in
    force, the cause cannot be known. `{place}` in a setting is the pipeline's directory.
    """

    stage: Stage
    said: tuple[str, ...]
    steps: tuple[str, ...]
    given: str = ""  # a regular expression for the content of the last form
    is_outside: bool = False
    is_pressed: bool = True  # False if the form needs more than the drill has, such as new code
    timeout_s: float = LIMIT_S - AFTER_TIMEOUT_S
    settings: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Staged], None] = lambda staged: None
    needs: str = ""  # a server
    disk: str = ""  # the directory that is a small disk of its own
    is_of_pipeline: bool = True  # so that the notice names it

    @property
    def limit_s(self) -> float:
        return max(LIMIT_S, self.timeout_s + AFTER_TIMEOUT_S)


def nothing(staged: Staged) -> AbstractContextManager[float]:
    """Stages nothing, for healthy pipelines."""
    return nullcontext(time.monotonic())


def pulled(lever: str, text: str, staged: Staged) -> Iterator[float]:
    yield staged.pull(lever, text)


def stepped_clock(staged: Staged) -> Iterator[float]:
    """Steps the clock, and sets it right afterwards.

    This process checked the pipeline, so its clock follows the lever too.
    """
    yield staged.pull(CLOCK, "3600")
    (staged.place / CLOCK).unlink()


def some_lines(staged: Staged) -> None:
    put(staged, "a", "".join(f'{{"n": {n}, "key": {n}}}\n' for n in range(40)))


def malformed(staged: Staged) -> Iterator[float]:
    began_s = time.monotonic()
    put(staged, "b", '{"n": 4, "key": 4}\n{"n": 5, "key"\n')
    yield began_s


def put(staged: Staged, name: str, text: str) -> None:
    """Puts a file into the input, whole and at once."""
    inbox = staged.place / "input"
    inbox.mkdir(exist_ok=True)
    new = inbox / f".{name}"
    new.write_text(text)
    os.replace(new, inbox / f"{name}.jsonl")


def stopped_slot(staged: Staged) -> Iterator[float]:
    slot = staged.slot()
    slot.suspend()
    yield time.monotonic()
    with suppress(OSError):
        slot.kill()


def killed_slot(staged: Staged) -> Iterator[float]:
    """Kills a slot, as the kernel kills the process that uses the most memory."""
    staged.slot().kill()
    yield time.monotonic()


def filled_disk(directory: str, staged: Staged) -> Iterator[float]:
    began_s = time.monotonic()
    filler = staged.place / directory / "filler"
    with open(filler, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(secrets.token_bytes(4096))
    yield began_s
    filler.unlink()


def read_only_disk(staged: Staged) -> Iterator[float]:
    disk = staged.place / "points"
    wait_until(lambda: remounted(disk, "ro"), within_s=ANSWER_S, otherwise=lambda: "it is in use")
    yield time.monotonic()
    remounted(disk, "rw")


def remounted(disk: Path, mode: str) -> bool:
    """Returns False if that is not possible because a file is being written."""
    command = ["mount", "-o", f"remount,{mode}", str(disk)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def stopped_database(staged: Staged) -> Iterator[float]:
    server = staged.site.servers.postgres
    if server is not None:
        server.kill()
        yield time.monotonic()
        server.start()


def some_entries(staged: Staged) -> None:
    server = staged.site.servers.redis
    if server is not None:
        with server.client() as client:
            for number in range(ENTRIES):
                client.xadd(staged.name, {"n": number, "key": number})


def a_topic(staged: Staged) -> None:
    server = staged.site.servers.kafka
    if server is not None:
        server.create_topic(staged.name)


def stopped_broker(staged: Staged) -> Iterator[float]:
    server = staged.site.servers.redis
    if server is not None:
        server.server.kill()
        yield time.monotonic()
        server.server.start()


def trimmed(staged: Staged) -> Iterator[float]:
    """Adds entries, and deletes some of them before any reader sees them."""
    server = staged.site.servers.redis
    if server is not None:
        with server.client() as client, client.pipeline(transaction=True) as at_once:
            for number in range(ENTRIES):
                at_once.xadd(staged.name, {"n": number, "key": number})
            at_once.xtrim(staged.name, maxlen=ENTRIES // 4, approximate=False)
            began_s = time.monotonic()
            at_once.execute()
        yield began_s


def corrupted(staged: Staged) -> Iterator[float]:
    """Corrupts the newest checkpoint's own files, and then kills a slot."""
    newest = staged.checkpoints[-1]
    for file in newest.iterdir():
        if file.is_file() and file.name != "manifest.json":
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 0xFF
            file.write_bytes(content)
    staged.slot().kill()
    yield time.monotonic()


def renamed(staged: Staged) -> Iterator[float]:
    """Edits the code, and kills the driver, so that the next driver reads the new code."""
    staged.pull(UID, "counts")
    yield staged.kill_driver()


def killed_parts(parts: Sequence[str], staged: Staged) -> Iterator[float]:
    began_s = time.monotonic()
    staged.site.kill(*parts)
    yield began_s
    staged.site.revive()


def killed_twice(staged: Staged) -> Iterator[float]:
    first = staged.run.driver_pid
    staged.kill_driver()
    staged.wait(lambda run: run.driver_pid not in (None, first) and run.status == "RUNNING")
    yield staged.kill_driver()


def certificates(staged: Staged) -> None:
    """Issues certificates that stay valid just long enough for the start."""
    until = datetime.now(UTC) + timedelta(seconds=CERTIFICATE_S)
    Authority(staged.place / "tls").issued(until)
    staged.pull("expires", str(until.timestamp()))


def expired(staged: Staged) -> Iterator[float]:
    """Waits until the certificates expire, and kills a slot.

    Open connections survive, but the next attempt cannot make new ones.
    """
    left_s = float((staged.place / "expires").read_text()) - time.time()
    time.sleep(max(0.0, left_s) + 1)
    staged.slot().kill()
    yield time.monotonic()


def by(stage: Callable[..., Iterator[float]], *given: object) -> Stage:
    return contextmanager(partial(stage, *given))


SOON_SILENT = {"heartbeat.interval": "500 ms", "heartbeat.timeout": "5 s"}
SHORT = {
    "execution.checkpointing.timeout": "10 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "heartbeat.timeout": "5 s",
    "restart-strategy.exponential-delay.max-backoff": "2 s",
}
"""Settings with which a transaction of 30 s lasts long enough; otherwise the run is refused."""

RESTARTS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": "100 ms",
}
TLS = {
    "security.ssl.internal.enabled": "true",
    "security.ssl.internal.certificate-file": "{place}/tls/certificate-1.pem",
    "security.ssl.internal.key-file": "{place}/tls/key-1.pem",
    "security.ssl.internal.ca-file": "{place}/tls/authority.pem",
}
QUARANTINE = {
    "steps": ("Set the record aside and go on",),
    "given": "poison-records.policy.*quarantine",
}

INCIDENTS: dict[str, Staging] = {
    "skewed-key": Staging(
        stage=by(pulled, SKEWED, ""),
        said=(
            "One subtask has most of the work",
            r"count\[\d\] does most",
            "Key group",
        ),
        steps=("Deploy corrected code",),
        is_pressed=False,
        parameters={"cost-ms": "4"},
    ),
    "disk-full": Staging(
        stage=by(filled_disk, "output"),
        said=("A disk is full", "No space left on device", r"free on \S+/output"),
        steps=("Free space on the disk",),
        is_outside=True,
        disk="output",
    ),
    "sink-database-stopped": Staging(
        stage=by(stopped_database),
        said=("A system that the run needs does not answer", r"127\.0\.0\.1:\d+ does not answer"),
        steps=("Start the system",),
        is_outside=True,
        parameters={"sink": "postgres"},
        needs="postgres",
    ),
    "source-trimmed": Staging(
        stage=by(trimmed),
        said=(
            "A source no longer has the records that come next",
            rf"The gap has up to {LOST} records",
        ),
        steps=("Restore, or accept the gap",),
        given=r"accepted_gaps=records",
        parameters={"source": "redis"},
        prepare=some_entries,
        needs="redis",
    ),
    "newest-checkpoint-corrupted": Staging(
        stage=by(corrupted),
        said=("A recovery point is damaged", r"chk-\d+", "continues from"),
        steps=("Trigger a checkpoint",),
    ),
    "uid-renamed": Staging(
        stage=by(renamed),
        said=("The recovery point does not fit the code", "count"),
        steps=("Restore, and map the old uid",),
        given=r"renamed=count%3A\+counts",
    ),
    "stopped-slot": Staging(
        stage=by(stopped_slot),
        said=("A slot died", "silent for longer than heartbeat.timeout"),
        steps=("restarts from its newest checkpoint by itself",),
        is_outside=True,
        timeout_s=5.0,
        settings=SOON_SILENT,
    ),
    "function-throws": Staging(
        stage=by(pulled, POISON, ""),
        said=("A function of the pipeline raised an error", r"rate\[\d\]", "key 7 is zero"),
        **QUARANTINE,
    ),
    "malformed-line": Staging(
        stage=by(malformed),
        said=("A source cannot read a record", r"b\.jsonl"),
        parameters={"source": "files"},
        prepare=some_lines,
        **QUARANTINE,
    ),
    "redis-and-worker": Staging(
        stage=by(killed_parts, ("redis", "worker")),
        said=("Requests wait", "Redis", "worker"),
        steps=("[Ss]tart",),
        is_outside=True,
        is_of_pipeline=False,
    ),
    "web-server-killed": Staging(
        stage=by(killed_parts, ("web",)),
        said=("web server does not answer", "pipelines go on"),
        steps=("[Ss]tart it",),
        is_outside=True,
        is_of_pipeline=False,
    ),
    "driver-killed-twice": Staging(
        stage=by(killed_twice),
        said=("The driver died", "2 times|start 2 of"),
        steps=("A worker starts another driver",),
        is_outside=True,
    ),
    "restarts-exhausted": Staging(
        stage=by(pulled, AWAY, ""),
        said=("does not answer", "rates.example:6379", "failed and waits for a person"),
        steps=("Restore the newest point",),
        settings=RESTARTS,
    ),
    "broker-away": Staging(
        stage=by(stopped_broker),
        said=("A system that the run needs does not answer", r"127\.0\.0\.1:\d+ does not answer"),
        steps=("Start the system",),
        is_outside=True,
        parameters={"source": "redis"},
        prepare=some_entries,
        needs="redis",
    ),
    "transaction-expires": Staging(
        stage=by(pulled, STUCK, ""),  # no checkpoint completes, so nothing is committed
        said=("A transaction is about to expire", "gives it up after 30"),
        steps=("Trigger a checkpoint",),
        timeout_s=30.0,
        settings=SHORT,
        parameters={"sink": "kafka"},
        prepare=a_topic,
        needs="kafka",
    ),
    "clock-step": Staging(
        stage=by(stepped_clock),
        said=("clock", "ahead"),
        steps=("Set the clock",),
        is_outside=True,
        parameters={"steps-clock": "true"},
    ),
    "read-only-disk": Staging(
        stage=by(read_only_disk),
        said=("A disk is read-only", "Read-only file system"),
        steps=("Mount the disk",),
        is_outside=True,
        settings={"execution.checkpointing.dir": "{place}/points"},
        disk="points",
    ),
    "out-of-memory": Staging(
        stage=by(killed_slot),
        said=("A slot died", r"held \d[\d.]* \w+ of memory"),
        steps=("Look at the memory of the machine",),
        is_outside=True,
    ),
    "stuck-code": Staging(
        stage=by(pulled, STUCK, ""),
        said=("does not return", r"records\[\d\] has stood", r"flow\.py:\d+, in rate"),
        steps=("End this run",),
    ),
    "expired-certificate": Staging(
        stage=by(expired),
        said=("A certificate is refused", "certificate has expired"),
        steps=("Put a valid certificate",),
        is_outside=True,
        settings=TLS,
        prepare=certificates,
    ),
}
