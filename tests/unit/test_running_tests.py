"""A suite that SIGTERM ends names the tests that were running."""

import os
import signal

import pytest

from tests.running_tests import RunningTests


def test_sigterm_names_the_running_and_the_longest_tests(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    running = RunningTests()
    running.pytest_runtest_logstart("tests/a.py::ended")
    running.pytest_runtest_logfinish("tests/a.py::ended")
    running.pytest_runtest_logstart("tests/b.py::hangs")
    running.watch()
    try:
        with pytest.raises(pytest.exit.Exception, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    said = capfd.readouterr().err.strip().splitlines()
    assert said == ["running for 0 s: tests/b.py::hangs", "took 0 s: tests/a.py::ended"]
