"""Signals that ask a process to end, tested on a process of its own."""

import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = """
import sys, time
from ftdash.embedded.outcome import end_when_asked
end_when_asked()
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt as asked:
    print("asked by", asked, flush=True)
    sys.stdin.readline()
    print("ended in order", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_any_end_signal_shuts_down_in_order_and_a_second_one_changes_nothing(start, number) -> None:
    process = start(ignored=signal.SIGINT)  # as for a background process of a script
    assert process.stdout.readline() == "ready\n"

    process.send_signal(number)
    assert process.stdout.readline() == f"asked by {number.name}\n"
    process.send_signal(number)
    said, _ = process.communicate("go on\n", timeout=20)

    assert said == "ended in order\n"
    assert process.returncode == 0


@pytest.mark.slow
def test_nohup_is_respected(start) -> None:
    process = start(ignored=signal.SIGHUP)
    assert process.stdout.readline() == "ready\n"

    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate("go on\n", timeout=20)

    assert said == "asked by SIGTERM\nended in order\n"


@pytest.fixture
def start() -> "Iterator[Callable[[signal.Signals], subprocess.Popen[str]]]":
    """Starts the program, and kills it after the test however it responded to the signal."""
    with ExitStack() as started:

        def start_one(ignored: signal.Signals) -> "subprocess.Popen[str]":
            process = started.enter_context(start_ignoring(ignored))
            started.callback(process.kill)
            return process

        yield start_one


def start_ignoring(ignored: signal.Signals) -> "subprocess.Popen[str]":
    """Starts the program with only `ignored` ignored, however these tests were started.

    Python keeps ignoring the signals that were ignored when it started.
    """
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in asking}
    try:
        for number in asking:
            signal.signal(number, signal.SIG_IGN if number is ignored else signal.SIG_DFL)
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
