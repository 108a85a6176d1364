"""A function fails with its secret in the error: no file of the run, and no log, contains it."""

from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.bus.run_log import newest_lines
from pipelines.domain.events import CheckpointCompleted, FailureOccurred
from pipelines.domain.log_lines import DRIVER
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.secretive import FAILS_AT

pytestmark = pytest.mark.slow

STEP_S = 60.0
SECRET = "hunter2-of-the-prices"
SETTINGS = {
    "execution.checkpointing.interval": "50 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "pipeline.failures.show-records": "true",
}


def test_no_file_and_no_log_holds_the_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "prices").write_text(SECRET)

    with hosted_run(
        home,
        {"token": "credential:prices"},
        settings=SETTINGS,
        spec_fields={"pipeline": "secretive"},
        environment={"CREDENTIALS_DIRECTORY": str(secrets)},
    ) as run:
        ended = run.wait_until_over(STEP_S)
        failures = [e.event for e in run.of(FailureOccurred)]
        completed = run.of(CheckpointCompleted)

    assert ended.status is JobStatus.FAILED
    assert "the service refuses ***" in ended.reason
    assert failures
    for failure in failures:
        assert isinstance(failure, FailureOccurred)
        assert "in process_element" in failure.author_trace
        assert "pipelines/" not in failure.author_trace
        assert f"number: {FAILS_AT}" in failure.record
        assert failure.origin is not None
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    held = {str(path) for path in files if SECRET.encode() in path.read_bytes()}
    assert held == {str(secrets / "prices")}
    assert len(files) > len(completed)
    told = "".join(capfd.readouterr())
    assert SECRET not in told
    check_log(run)


def check_log(run: StartedRun) -> None:
    """Asserts that INFO lines of each attempt are there, with the subtask that logged them."""
    lines = [line for _, line in newest_lines(run.directory.log, lambda _: True, 10_000)]
    spec_fields = [line for line in lines if line.message == "It asks with ***."]
    failed = [line for line in lines if line.message == "It fails with ***."]

    opened = [(line.attempt, line.level) for line in spec_fields if line.subtask == "slot 0"]
    assert opened == [(1, "INFO"), (2, "INFO")]
    # Sent before the error ended the slot.
    assert [(line.attempt, line.subtask) for line in failed] == [(1, "asking[0]"), (2, "asking[0]")]
    assert [line.message for line in lines if line.subtask == DRIVER][-1].startswith(
        f"The run is {JobStatus.FAILED.value}."
    )
    assert all(line.time.utcoffset() == timedelta(0) for line in lines)
