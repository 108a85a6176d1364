"""A record that fails twice is set aside with its checkpoint, whichever process is killed."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import (
    FailureOccurred,
    JobStatusChanged,
    RecordQuarantined,
    RecordsIsolated,
    SlotConnected,
)
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.numbers import KEYS
from tests.processes.poisoned import (
    assert_each_is_processed_or_quarantined,
    output_of,
    quarantine_of,
)
from tests.processes.savepoint_requests import WHO, manifest_of, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 4_000
TORN, AT_SOURCE, BEHIND = {3_456}, {1_234}, {2_901}
POISON = TORN | AT_SOURCE | BEHIND
PARAMETERS = {
    "total": str(TOTAL),
    "torn": " ".join(map(str, sorted(TORN))),
    "at_source": " ".join(map(str, sorted(AT_SOURCE))),
    "behind": " ".join(map(str, sorted(BEHIND))),
}
FIELDS: dict[str, object] = {"pipeline": "poisoned"}
SETTINGS = {
    "execution.poison-records.policy": "quarantine",
    "execution.checkpointing.interval": "100 ms",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
    "restart-strategy.repeated-failure.min-tries": "2",
    "restart-strategy.repeated-failure.min-duration": "0",
}


@pytest.mark.parametrize("driver", [False, True], ids=["a slot", "the driver"])
def test_a_kill_during_isolation_leaves_every_record_processed_or_quarantined(
    tmp_path: Path, driver: bool
) -> None:
    with hosted_run(tmp_path, PARAMETERS, settings=SETTINGS, spec_fields=FIELDS) as run:
        run.wait_for(lambda _: bool(run.of(RecordsIsolated)), STEP_S)
        isolating = run.of(RecordsIsolated)[0].attempt + 1
        if driver:
            os.kill(run.process.pid, signal.SIGKILL)
            run.process.wait(STEP_S)
        else:
            run.wait_for(lambda _: is_running(run, isolating), STEP_S)
            with suppress(ProcessLookupError):  # it was quick, and has already failed at the record
                os.kill(slots_of(run, isolating)[1], signal.SIGKILL)
            ended = run.wait_until_over(STEP_S)
    if driver:
        with hosted_run(tmp_path, run_id=run.directory.run_id, spec_fields=FIELDS) as run:
            ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_each_is_processed_or_quarantined(tmp_path, TOTAL, POISON)
    assert sorted(numbers_decided(run)) == sorted(POISON)  # no record was decided a second time
    lines = {line["operator"]: line for line in quarantine_of(tmp_path)}
    assert lines["digest"]["error_type"] == "builtins.ValueError"
    assert "cannot be counted" in lines["count"]["error"]
    assert "process_element" in lines["count"]["trace"]
    counters = run.completed()[-1].counters
    assert counters["numbers.records_quarantined"] == len(POISON)
    assert counters["numbers.records_read"] == TOTAL


def test_exceeding_the_quarantine_limit_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    settings = SETTINGS | {"execution.poison-records.limit": "1"}
    with hosted_run(tmp_path, PARAMETERS, settings=settings, spec_fields=FIELDS) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert "The run has set aside as many records as it may, 1 (" in ended.reason
    assert "execution.poison-records.limit" in ended.reason
    assert len(numbers_decided(run)) == 1


def test_a_corrected_pipeline_reads_quarantined_and_new_records(tmp_path: Path) -> None:
    """The run reads it once, though killed; the quarantine is another run's and stays as it is."""
    quarantine, bad = tmp_path / "quarantine", [5_000, 5_001, 5_002]
    quarantine.mkdir()
    for number in bad:
        record = {"number": number, "key": number % KEYS, "at": "1970-01-01T01:23:20Z"}
        line = json.dumps({"record": json.dumps(record)}) + "\n"
        (quarantine / f"part-run-0-0000000{number}-0-0.jsonl").write_text(line)
    parameters = {"total": "3000", "again": str(quarantine)}
    settings = SETTINGS | {"testing.faults": "kill committing slot=0"}

    with hosted_run(tmp_path, parameters, settings=settings, spec_fields=FIELDS) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert run.of(FailureOccurred)
    assert sorted(number for number, _, _ in output_of(tmp_path)) == [*range(3_000), *bad]


def test_after_a_fix_quarantined_records_pass_the_same_operators_once(tmp_path: Path) -> None:
    """Some of it fails again, a process is killed meanwhile; a second replay reads only that."""
    half_fixed = {"behind": PARAMETERS["behind"]}
    killed = SETTINGS | {"testing.faults": "kill committing slot=0"}

    first = stopped(tmp_path, PARAMETERS | {"torn": ""}, (2, 0))
    again = stopped(tmp_path, half_fixed, (3, 2), replays_from=first, settings=killed)
    assert_numbers_are(tmp_path, set(range(TOTAL)) - BEHIND)
    stopped(tmp_path, {}, (3, 3), replays_from=again, parallelism=3)

    assert_numbers_are(tmp_path, set(range(TOTAL)))
    places = [line["split"].partition("/")[0] for line in quarantine_of(tmp_path)]
    assert sorted(places) == ["numbers-1", "numbers-2", "quarantine"]


def stopped(
    root: Path,
    parameters: dict[str, str],
    counts: tuple[int, int],
    *,
    replays_from: Path | None = None,
    settings: dict[str, str] = SETTINGS,
    parallelism: int = 2,
) -> Path:
    """Returns the savepoint of a run stopped with `counts` records quarantined and replayed.

    A run that reads the quarantine again continues from the savepoint `replays_from`.
    """
    restored: dict[str, object] = {}
    if replays_from is not None:
        restored = {
            "restore_from": str(replays_from),
            "first_checkpoint_id": manifest_of(replays_from).checkpoint_id + 1,
            "replayed_sources": ["numbers"],
        }
    with hosted_run(
        root,
        {"total": str(TOTAL), "stays": "true", **parameters},
        settings=settings,
        parallelism=parallelism,
        spec_fields=FIELDS | restored,
    ) as run:
        run.wait_for(lambda _: bool(run.completed()) and counted(run) == (TOTAL, *counts), STEP_S)
        is_disturbed = "testing.faults" in settings
        assert bool(run.of(FailureOccurred)) == (is_disturbed or replays_from is None)
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    assert counted(run) == (TOTAL, *counts)
    return savepoint


def counted(run: StartedRun) -> tuple[int, int, int]:
    """Returns the records read, quarantined and replayed, up to the newest checkpoint."""
    counters = run.completed()[-1].counters
    names = ("records_read", "records_quarantined", "records_replayed")
    read, aside, replayed = (counters.get(f"numbers.{name}", 0) for name in names)
    return read, aside, replayed


def assert_numbers_are(root: Path, expected: set[int]) -> None:
    """Asserts that each number is there once, and counted once."""
    processed = output_of(root)
    assert sorted(number for number, _, _ in processed) == sorted(expected)
    for key in range(KEYS):
        numbered = sorted(nth for _, of, nth in processed if of == key)
        assert numbered == list(range(1, len(numbered) + 1))


def is_running(run: StartedRun, attempt: int) -> bool:
    running = JobStatusChanged(status=JobStatus.RUNNING)
    return any(e.attempt == attempt and e.event == running for e in run.of(JobStatusChanged))


def slots_of(run: StartedRun, attempt: int) -> list[int]:
    """Returns the process ids."""
    events = [each.event for each in run.of(SlotConnected) if each.attempt == attempt]
    return [event.pid for event in events if isinstance(event, SlotConnected)]


def numbers_decided(run: StartedRun) -> list[int]:
    events = [envelope.event for envelope in run.of(RecordQuarantined)]
    records = [event.record for event in events if isinstance(event, RecordQuarantined)]
    return [int(each.split.removeprefix("numbers-")) * 1_000 + each.offset for each in records]
